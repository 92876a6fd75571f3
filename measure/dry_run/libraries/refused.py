"""What cannot be pretended yet ends in a sentence: some compiled functions, CUDA graphs, recurrent layers,
code that comes with a checkpoint.
"""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

import torch

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries import flex_attention, inductor
from measure.dry_run.libraries.importing import Change, OnImport

# What layers of torch.nn.modules.rnn call.
_OF_CUDNN = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# Source: torch 2.13 aten/src/ATen/native/cudnn/RNN.cpp asks cudnnGetRNNTempSpaceSizes for both.
_OF_CUDNN_ALONE = (
    "is one kernel of cuDNN, which alone knows what it keeps for backward and works in; "
    "torch.backends.cudnn.enabled = False in the program runs torch's own kernels, which take other bytes"
)
_SWITCHES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")


def install(imports: OnImport, guesses: Guesses, *, trust_remote_code: bool) -> None:
    """Refuse these when the program uses them, not when it only defines them."""

    def refuse(what: str, why: str) -> NoReturn:
        guesses.refuse(why, what)
        raise NotImplementedError(f"a dry run cannot follow {what}: it {why}")

    class Graph:
        """Named in annotations, so it stays a class."""

        def __init__(self, *_: Any, **__: Any) -> None:
            refuse("torch.cuda.CUDAGraph", "has a memory pool of its own")

    torch.compile = _compiler(refuse, guesses)
    for name in _OF_CUDNN:
        setattr(torch._VF, name, _on_the_host(getattr(torch._VF, name), refuse))
    for name in ("CUDAGraph", "graph", "make_graphed_callables"):
        setattr(torch.cuda, name, Graph)
    if not trust_remote_code:
        imports.add("transformers.dynamic_module_utils", _without_remote_code(refuse))


def _compiler(refuse: Callable[[str, str], NoReturn], guesses: Guesses) -> Any:
    compile_ = torch.compile

    def compiled(model: Any = None, *, disable: bool = False, **options: Any) -> Any:
        if model is None:
            return partial(compiled, disable=disable, **options)
        if disable:
            return model
        stands_in = flex_attention.compiled(model, guesses)
        if stands_in is not None:
            return stands_in
        if _is_off():
            name = getattr(model, "__qualname__", type(model).__name__)
            guesses.assume("torch.compile", "left out, though compiled code keeps other bytes", name)
            return model

        why = inductor.why_not(options)
        if not why:
            return compile_(model, **options)

        def run(*_: Any, **__: Any) -> NoReturn:
            refuse("torch.compile", f"{why} {inductor.WITHOUT}")

        if isinstance(model, torch.nn.Module):
            model.forward = run
            return model
        return run

    return compiled


def _on_the_host(run: Callable[..., Any], refuse: Callable[[str, str], NoReturn]) -> Callable[..., Any]:
    def recurrent(batch: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if batch.is_cuda and torch.backends.cudnn.enabled:
            refuse("a recurrent layer", _OF_CUDNN_ALONE)
        return run(batch, *args, **kwargs)

    return recurrent


def _is_off() -> bool:
    """Whether torch would compile nothing (torch 2.13 _dynamo/config.py, _dynamo/eval_frame.py)."""
    return any(os.environ.get(name) == "1" for name in _SWITCHES)


def _without_remote_code(refuse: Callable[[str, str], NoReturn]) -> Change:
    def change(module: ModuleType) -> None:
        def get_class(class_reference: Any, *_: Any, **__: Any) -> NoReturn:
            refuse(
                str(class_reference), "is code that comes with a checkpoint; --trust-remote-code allows it"
            )

        module.get_class_from_dynamic_module = get_class  # type: ignore[attr-defined]

    return change
