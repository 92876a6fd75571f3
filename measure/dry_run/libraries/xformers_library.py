"""xformers beside torch of a CPU build: its compiled part does not load.  From 0.0.34 on its attention is
Python code around kernels of torch, and that code runs.  Older versions have kernels of their own.

Source: xformers 0.0.35 _cpp_lib.py, ops/fmha/common.py, flash.py, cutlass.py, dispatch.py; 0.0.26 to 0.0.33
ops/fmha/flash.py (``_C_flashattention``) and ops/swiglu_op.py (``SwiGLUPackedFusedOp``), whose fused products
fall back to others in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch

from measure.dry_run.cuda.cuda_bindings import always
from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.importing import Change, OnImport
from planner.files.reading import read_text
from planner.files.structured import json_value

_FIRST_WITHOUT_KERNELS = (0, 0, 34)
_WITH_KERNELS = {
    "xformers.ops.fmha": (
        "_memory_efficient_attention",
        "_memory_efficient_attention_forward",
        "_memory_efficient_attention_forward_requires_grad",
    ),
    "xformers.ops.swiglu_op": ("swiglu", "swiglu_packed"),
}
_WHY = "has kernels of its own in this version; from 0.0.34 on it takes those of torch"
# FlashAttention 3 is for Hopper alone (ops/fmha/flash3.py).
_HOPPER = (9, 0)


def install(imports: OnImport, guesses: Guesses) -> None:
    """Change xformers when the program imports it."""
    if _takes_kernels_of_torch():
        imports.add("xformers._cpp_lib", _built_for_cuda)
        imports.add("xformers.ops.fmha.dispatch", _noted(guesses))
        return
    imports.wrap("xformers.ops.fmha.flash", _refusing(guesses))
    for module, names in _WITH_KERNELS.items():
        imports.add(module, _refused(guesses, names))


def _takes_kernels_of_torch() -> bool:
    try:
        found = version("xformers").split("+")[0].split(".")[:3]
    except PackageNotFoundError:
        return True
    return tuple(int(each) for each in found if each.isdigit()) >= _FIRST_WITHOUT_KERNELS


def _built_for_cuda(module: ModuleType) -> None:
    """As where the compiled part was loaded; a program may load it again by itself."""
    facts = Path(str(module.__file__)).with_name("cpp_lib.json")
    built = module._BuildInfo(json_value(facts, read_text(facts)))  # noqa: SLF001 - it has no public name
    vars(module).update(_built_with_cuda=True, _build_metadata=built, _register_extensions=always(built))


def _noted(guesses: Guesses) -> Change:
    def change(module: ModuleType) -> None:
        choose = module._run_priority_list  # noqa: SLF001 - it has no public name

        def chosen(name: str, *args: Any, **kwargs: Any) -> Any:
            operator = choose(name, *args, **kwargs)
            newer = torch.cuda.get_device_capability() == _HOPPER and "fa2" in operator.NAME
            instead = ", where the package flash_attn_3 would have others" if newer else ""
            guesses.assume("package xformers", f"torch's kernels{instead}", operator.NAME)
            return operator

        vars(module)["_run_priority_list"] = chosen

    return change


def _refused(guesses: Guesses, names: tuple[str, ...]) -> Change:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        guesses.refuse(_WHY, "xformers")
        raise NotImplementedError(f"a dry run cannot follow xformers: it {_WHY}")

    def change(module: ModuleType) -> None:
        vars(module).update(dict.fromkeys(names, refuse))

    return change


def _refusing(guesses: Guesses) -> Any:
    @contextmanager
    def around() -> Iterator[None]:
        try:
            yield
        except ImportError:
            guesses.refuse(_WHY, "xformers")
            raise

    return around
