"""What cannot be pretended yet ends in a sentence: compiled functions, CUDA graphs,
code that comes with a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

import torch

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries import flex_attention
from measure.dry_run.libraries.importing import Change, OnImport


def install(imports: OnImport, guesses: Guesses, *, trust_remote_code: bool) -> None:
    """Refuse these when the program uses them, not when it only defines them."""

    def refuse(what: str, why: str) -> NoReturn:
        guesses.refuse(why, what)
        raise NotImplementedError(f"a dry run cannot follow {what}: it {why}")

    def compiled(model: Any = None, **_: Any) -> Any:
        if model is None:
            return compiled
        stands_in = flex_attention.compiled(model, guesses)
        if stands_in is not None:
            return stands_in

        def run(*_: Any, **__: Any) -> NoReturn:
            refuse("torch.compile", "makes kernels whose memory is not known before they are made")

        if isinstance(model, torch.nn.Module):
            model.forward = run
            return model
        return run

    class Graph:
        """Named in annotations, so it stays a class."""

        def __init__(self, *_: Any, **__: Any) -> None:
            refuse("torch.cuda.CUDAGraph", "has a memory pool of its own")

    torch.compile = compiled
    for name in ("CUDAGraph", "graph", "make_graphed_callables"):
        setattr(torch.cuda, name, Graph)
    if not trust_remote_code:
        imports.add("transformers.dynamic_module_utils", _without_remote_code(refuse))


def _without_remote_code(refuse: Callable[[str, str], NoReturn]) -> Change:
    def change(module: ModuleType) -> None:
        def get_class(class_reference: Any, *_: Any, **__: Any) -> NoReturn:
            refuse(
                str(class_reference), "is code that comes with a checkpoint; --trust-remote-code allows it"
            )

        module.get_class_from_dynamic_module = get_class  # type: ignore[attr-defined]

    return change
