"""What FSDP1 gathers together, and the moments of each unit at which its hooks run.

Source: torch 2.13 distributed/fsdp/wrap.py, _runtime_utils.py, whose functions the methods name; peft 0.21
utils/other.py fsdp_auto_wrap_policy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

from measure.trace.sharding.fsdp_units import ROOT, TracedUnit
from measure.trace.sharding.marks import Moment, put_mark
from measure.trace.tracer import Recorder

NEEDS_BACKWARD = "needs_backward"
"""Name on the mark of a unit's end whose output has a gradient."""


def make_flat_units(model: nn.Module, layer_list: str, *, wraps_adapters: bool) -> list[TracedUnit]:
    """The root, which stays whole until its backward; each decoder layer; and, beside adapters, each module
    without others inside whose weight is trained.
    """
    layers = [f"{layer_list}.{name}" for name, _ in model.get_submodule(layer_list).named_children()]
    leaves = [
        name for name, module in model.named_modules() if wraps_adapters and name and _is_trained_leaf(module)
    ]
    names = [name for name, _ in model.named_modules() if name in {*layers, *leaves}]
    return [TracedUnit(ROOT, ("",), stays_whole=True), *(TracedUnit(name, (name,)) for name in names)]


def _children(module: nn.Module) -> list[nn.Module]:
    return list(module.children())


def _is_trained_leaf(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return not _children(module) and isinstance(weight, torch.Tensor) and weight.requires_grad


@contextmanager
def marking_waits(recorder: Recorder) -> Iterator[None]:
    """Mark where the host waits for the card to learn whether a mask is full."""
    masking = importlib.import_module("transformers.masking_utils")
    ask = masking.fast_all

    def answer(mask: torch.Tensor) -> bool:
        put_mark(recorder, "host_waits", "")
        full: bool = ask(mask)
        return full

    with mock.patch.object(masking, "fast_all", answer):
        yield


class FlatHooks:
    """Marks the moments of every unit.

    ``FullyShardedDataParallel`` is a module around each unit, so its hooks run outside of a checkpoint that
    the unit itself begins.  ``shards_fp32``: what adapters are asked for their dtype while they are divided
    is wider than what they compute with.  ``prefetches``: see
    :class:`~measure.trace.sharding.runtime_settings.FlatSettings`.
    """

    def __init__(
        self,
        model: nn.Module,
        units: list[TracedUnit],
        recorder: Recorder,
        *,
        shards_fp32: bool,
        prefetches: bool,
    ) -> None:
        self._units, self._recorder = units, recorder
        self._prefetches, self._shards_fp32 = prefetches, shards_fp32
        # Units in the order in which their forwards ended, and those that were sent for since.
        self._order: list[TracedUnit] = []
        self._sent_for: set[str] = set()
        # Of units without trained weights, until backward is over (``_post_backward_hook_state``).
        self._held: dict[str, Any] = {}
        # Of those that hold others, which no gradient alone ends.
        self._trained: list[TracedUnit] = []
        for unit in units:
            module = model.get_submodule(unit.modules[0])
            trained = _has_own_trained(module, unit, units, model)
            if trained and unit.place != ROOT and _children(module):
                self._trained.append(unit)
            self._wrap(unit, module, trained=trained)

    def _wrap(self, unit: TracedUnit, module: nn.Module, *, trained: bool) -> None:
        kind = type(module)

        def call(wrapped: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if wrapped is not module or unit.state == "before_backward":
                return kind.__call__(wrapped, *args, **kwargs)  # a block that is computed again
            self._before_forward(unit, (args, kwargs), trained=trained)
            output = kind.__call__(wrapped, *args, **kwargs)
            self._after_forward(unit, output)
            return output

        # ``__call__`` and properties are looked up in the class.
        fields: dict[str, Any] = {"__call__": call, "__module__": kind.__module__}
        if self._shards_fp32 and _is_trained_leaf(module):
            fields["weight"] = property(self._seen_weight(unit))
        module.__class__ = type(kind.__name__, (kind,), fields)

    def _seen_weight(self, unit: TracedUnit) -> Callable[[nn.Module], Any]:
        """The weight of an adapter, or what stands for it while it is divided.

        PEFT casts the input of ``lora_A`` to the dtype of its weight, before that is gathered (0.21
        tuners/lora/layer.py forward).
        """

        def seen(module: nn.Module) -> Any:
            # A property hides what ``nn.Module`` would find.
            weight = module._parameters["weight"]  # noqa: SLF001
            is_whole = unit.state in ("forward", "before_backward") or unit.place in self._sent_for
            return weight if is_whole else _Divided(weight)

        return seen

    def _mark(self, moment: Moment, unit: TracedUnit, name: str = "") -> None:
        put_mark(self._recorder, moment, "" if unit.place == ROOT else unit.place, name)

    def _before_forward(self, unit: TracedUnit, inputs: Any, *, trained: bool) -> None:
        """``_pre_forward``."""
        unit.state = "forward"
        self._sent_for.discard(unit.place)
        self._mark("before_forward", unit)
        if not torch.is_grad_enabled():
            return
        leaves = torch.utils._pytree.tree_leaves(inputs)  # noqa: SLF001
        given = [each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]
        if not trained:
            if unit.place not in self._held:
                self._held[unit.place] = register_multi_grad_hook(given, self._ended(unit))
        elif given:
            # Gradients of all views of a flat parameter are there when that of the unit's input is.
            hook: Any = given[0].register_hook
            hook(self._ended(unit))

    def _ended(self, unit: TracedUnit) -> Callable[[Any], None]:
        def run(_: Any) -> None:
            if unit.state != "after_backward":
                unit.state = "after_backward"
                self._mark("after_backward", unit)

        return run

    def _after_forward(self, unit: TracedUnit, output: Any) -> None:
        """``_post_forward``, ``_register_pre_backward_hooks``."""
        leaves = torch.utils._pytree.tree_leaves(output)  # noqa: SLF001
        made = [each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]
        needs = bool(made) and torch.is_grad_enabled()
        self._mark("after_forward", unit, NEEDS_BACKWARD if needs else "")
        for each in made if needs else ():
            hook: Any = each.register_hook
            hook(lambda _: self._before_backward(unit))
        unit.state = "idle"
        self._order.append(unit)

    def _before_backward(self, unit: TracedUnit) -> None:
        """``_pre_backward_hook``: once for each forward.

        Nodes of later forwards run first, so that gradients of trained units behind this one are there.
        """
        if unit.state == "idle":
            for other in self._trained:
                if other.state == "before_backward" and not _is_inside(unit.place, other.place):
                    self._ended(other)(None)
            unit.state = "before_backward"
            self._mark("before_backward", unit)
            index = self._order.index(unit) if self._prefetches else 0
            if index:
                self._sent_for.add(self._order[index - 1].place)

    def end_of_backward(self) -> None:
        """``_post_backward_final_callback``: units whose input needs no gradient have not ended yet."""
        for unit in self._units:
            if unit.state != "after_backward":
                self._mark("after_backward", unit)
            unit.state = "idle"
        for handle in self._held.values():
            handle.remove()
        self._held.clear()
        self._order.clear()
        self._sent_for.clear()


class _Divided:
    """A weight of which only a part in fp32 is here."""

    dtype = torch.float32

    def __init__(self, weight: Any) -> None:
        self._weight = weight

    def __getattr__(self, name: str) -> Any:
        return getattr(self._weight, name)


def _has_own_trained(module: nn.Module, unit: TracedUnit, units: list[TracedUnit], model: nn.Module) -> bool:
    """Whether a unit has trained parameters that no unit inside of it has."""
    inside = {
        id(each)
        for other in units
        if other is not unit and _is_inside(other.modules[0], unit.modules[0])
        for each in model.get_submodule(other.modules[0]).parameters()
    }
    return any(each.requires_grad and id(each) not in inside for each in module.parameters())


def _is_inside(inner: str, outer: str) -> bool:
    return not outer or inner.startswith(f"{outer}.")
