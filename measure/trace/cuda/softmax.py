"""``softmax`` and ``log_softmax`` as CUDA runs them:
fp16 goes into an fp32 result without a copy of the input.

Source: torch 2.13 ATen/native/SoftMax.cpp ``softmax``, ``log_softmax`` (``half_to_float``);
bf16 is copied on CUDA too.
"""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_KERNELS = {
    "softmax.int": torch.ops.aten._softmax.default,
    "log_softmax.int": torch.ops.aten._log_softmax.default,
}

READS_COPIES = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("_softmax", "_log_softmax", "_log_softmax_backward_data")
)
"""Operators whose kernels read a copy of what has gaps between its elements, taken after their outputs.

Source: torch 2.13 ATen/native/cuda/SoftMax.cu host_softmax, host_softmax_backward (``contiguous()``).
"""


def _on_cuda(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        if tensor.dtype == torch.float16 and dtype == torch.float32:
            return kernel(tensor, dim, True)
        return kernel(tensor if dtype is None else tensor.to(dtype), dim, False)

    return run


@contextmanager
def softmax_on_cuda() -> Iterator[None]:
    """Inside, fp16 scores on the CPU take CUDA's way into an fp32 softmax."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name, kernel in _KERNELS.items():
            library.impl(name, _on_cuda(kernel), "AutogradCPU")
        yield
