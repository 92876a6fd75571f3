"""Types such as ``torch.cuda.FloatTensor``, which a CPU build has by name: it neither makes their tensors nor
takes one for the default type.

Source: torch 2.13 torch/csrc/tensor/python_tensor.cpp (``Tensor_new``, ``py_set_default_tensor_type``).
"""

from __future__ import annotations

from typing import Any

import torch


class _OnCard(type):
    """Type of a stand-in, which makes tensors as ``torch.Tensor`` does: of sizes, or of values."""

    of_torch: Any
    dtype: torch.dtype
    is_cuda = True

    def __call__(cls, *given: Any) -> torch.Tensor:
        if len(given) == 1 and not isinstance(given[0], (int, torch.Size)):
            return torch.tensor(given[0], dtype=cls.dtype, device="cuda")
        return torch.empty(*(given or (0,)), dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.of_torch)


def install() -> None:
    """Replace the types, what takes them, and what makes one the default."""
    for name in [name for name in vars(torch.cuda) if name.endswith("Tensor")]:
        found: Any = getattr(torch.cuda, name)
        made = _OnCard(name, (), {"of_torch": found, "dtype": found.dtype, "__module__": "torch.cuda"})
        setattr(torch.cuda, name, made)
    convert: Any = torch.Tensor.type
    set_default: Any = torch.set_default_tensor_type

    def to_type(tensor: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        return convert(tensor, getattr(dtype, "of_torch", dtype), *args, **kwargs)

    def set_type(kind: Any) -> None:
        if isinstance(kind, str):
            kind = getattr(torch.cuda if kind.startswith("torch.cuda.") else torch, kind.rpartition(".")[2])
        if not kind.is_cuda:
            set_default(kind)
        else:
            torch.set_default_dtype(kind.dtype)
        torch.set_default_device("cuda" if kind.is_cuda else None)

    torch.Tensor.type = to_type  # type: ignore[method-assign,assignment]
    torch.set_default_tensor_type = set_type
