"""Marks where DeepSpeed's stage 3 hooks into every module: before and after its forward and its backward.

Source: DeepSpeed 0.19.8 runtime/zero/parameter_offload.py ``_register_deepspeed_module``.  The functions on
outputs and on inputs given by position run in the backward.  Saved activations of a recomputed block go
through them once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from measure.trace.sharding.marks import Moment, put_mark
from measure.trace.tracer import Recorder


class _InBackward(torch.autograd.Function):
    """Hands a tensor on, and calls back when its gradient passes:
    ``PreBackwardFunctionForModule`` and its counterpart.
    """

    @staticmethod
    def forward(ctx: Any, call: Callable[[], None], tensor: torch.Tensor) -> torch.Tensor:
        """The tensor."""
        ctx.call = call
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient."""
        ctx.call()
        return (None, *gradients)


class ModuleHooks:
    """Hooks of one module.  ``aliases`` are parameters that another module owned first,
    as ``module:name``.
    """

    def __init__(self, module: nn.Module, name: str, aliases: str, recorder: Recorder) -> None:
        self._name, self._aliases, self._recorder = name, aliases, recorder
        self._waiting = 0
        module.register_forward_pre_hook(self._before_forward)
        module.register_forward_hook(self._after_forward)

    def _mark(self, moment: Moment) -> None:
        put_mark(self._recorder, moment, self._name, self._aliases)

    def _before_forward(self, _module: nn.Module, args: Any) -> Any:
        self._mark("before_forward")
        self._waiting = 0
        return tree_map(self._watch_input, args)

    def _watch_input(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        self._waiting += value.requires_grad
        apply: Any = _InBackward.apply
        return apply(self._input_done, value)

    def _input_done(self) -> None:
        self._waiting -= 1
        if self._waiting == 0:
            self._mark("after_backward")

    def _after_forward(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        self._mark("after_forward")
        return tree_map(self._watch_output, output)

    def _watch_output(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        apply: Any = _InBackward.apply
        return apply(lambda: self._mark("before_backward"), value)


def hook_modules(model: nn.Module, recorder: Recorder) -> None:
    """Hook into every module of ``model``.

    What PEFT lays around a matrix reads ``lora_A.weight`` for its dtype, before it calls ``lora_A``: the
    parameter is one of both from then on.  Source: peft 0.21.2 tuners/lora/layer.py, bnb.py
    ``_cast_input_dtype``; DeepSpeed 0.19.8 runtime/zero/parameter_offload.py ``ZeROOrderedDict``.
    """
    owners: dict[nn.Parameter, str] = {}
    for name, module in model.named_modules():
        aliases = []
        for own, tensor in module.named_parameters(recurse=False):
            key = owners.setdefault(tensor, f"{name}:{own}")
            if key != f"{name}:{own}":
                aliases.append(key)
        aliases += [f"{name}.lora_A.{adapter}:weight" for adapter in getattr(module, "lora_A", ())]
        ModuleHooks(module, name, " ".join(aliases), recorder)
