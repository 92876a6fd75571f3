"""What FSDP2 gathers together: the units that accelerate makes,
and the moments of each that the runtime hooks into.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from measure.trace.sharding.marks import put_mark
from measure.trace.tracer import Recorder
from planner.domain.stack_values import DIVIDED_ROOTS, Fsdp2Units

ROOT = "(root)"
_State = Literal["idle", "forward", "before_backward", "after_backward"]


@dataclass(slots=True)
class TracedUnit:
    """Modules that are gathered and freed together; ``place`` is the module that its marks name.

    ``stays_whole``: from its forward to its backward.
    """

    place: str
    modules: tuple[str, ...]
    stays_whole: bool = False
    state: _State = "idle"
    to_run: set[str] = field(default_factory=set)


def make_units(model: Any, layer_list: str, kind: Fsdp2Units = "ends_apart") -> list[TracedUnit]:
    """Each decoder layer; the token table; the last norm with the head; and the root with what is left.

    A table that is tied to the head goes with it.  PEFT's wrapper hides the last norm,
    which then stays with the root.  ``ends_in_root``: the root has all of these, and is not kept whole;
    ``root_divided`` and ``all_in_root``: the table, too.  ``root_whole``: so, and it is kept whole, as the
    last layer is.
    Source: accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model, ``_find_final_norm``;
    hiyouga/LLaMA-Factory ff6d4d12e src/llamafactory/v1/plugins/trainer_plugins/distributed/fsdp2.py
    prepare_model, of whose units those of adapters are left out; torchtitan 9dec370
    parallelisms/parallelize_llama.py apply_fsdp; axolotl 0.19.0 monkeypatch/accelerate/fsdp2.py.
    """
    names = {module: name for name, module in model.named_modules()}
    layers = [
        TracedUnit(name, (name,))
        for name in (f"{layer_list}.{index}" for index in range(len(model.get_submodule(layer_list))))
    ]
    table, head, norm = model.get_input_embeddings(), model.get_output_embeddings(), _final_norm(model)
    tied = table is not None and head is not None and table.weight is head.weight
    own = [] if tied or table is None else [TracedUnit(names[table], (names[table],))]
    if kind == "root_whole":
        layers[-1].stays_whole = True
        return [TracedUnit(ROOT, ("",), stays_whole=True), *layers]
    if kind in DIVIDED_ROOTS:
        return [TracedUnit(ROOT, ("",)), *layers]
    if kind == "ends_in_root":
        return [TracedUnit(ROOT, ("",)), *own, *layers]
    tail = tuple(
        names[module] for module in ((norm, table, head) if tied else (norm, head)) if module is not None
    )
    tails = [TracedUnit(tail[0], tail, stays_whole=True)] if tail else []
    return [TracedUnit(ROOT, ("",), stays_whole=True), *own, *layers, *tails]


def tower_units(model: Any, layer_list: str, *, named: bool) -> list[TracedUnit]:
    """Layers of a tower that are units because Transformers lists their class.  Without images none runs.

    A list with a class that the model lacks stops the job: what starts has ``named`` other classes.
    Source: accelerate 1.15 utils/dataclasses.py set_auto_wrap_policy, utils/fsdp_utils.py
    fsdp2_prepare_auto_wrap_policy; transformers 5.23 modeling_utils.py post_init.
    """
    listed = set(model._no_split_modules or ())  # noqa: SLF001
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    if not named and listed - set(kinds.values()):
        return []
    places = [name for name, kind in kinds.items() if kind in listed]
    return [TracedUnit(name, (name,)) for name in places if not name.startswith(f"{layer_list}.")]


def _final_norm(model: Any) -> nn.Module | None:
    prefix = getattr(model, "base_model_prefix", "")
    base = getattr(model, prefix, None) if prefix else model
    children = base.children() if isinstance(base, nn.Module) else ()
    norms = [module for module in children if "Norm" in type(module).__name__]
    return norms[-1] if norms else None


def unit_of(module: str, units: list[TracedUnit]) -> TracedUnit:
    """The unit of a module: that of the nearest module around it that has one."""
    owners = {name: unit for unit in units for name in unit.modules}
    while module not in owners:
        module = module.rpartition(".")[0]
    return owners[module]


class _AfterBackward(torch.autograd.Function):
    """Hands its inputs on, and calls back when their gradients have come: FSDP's
    ``RegisterPostBackwardFunction``.
    """

    @staticmethod
    def forward(ctx: Any, call: Callable[[], None], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The inputs."""
        ctx.call = call
        return inputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients."""
        ctx.call()
        return (None, *gradients)


class UnitHooks:
    """Marks the moments of every unit, with the states that decide which hooks do anything.

    Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_state.py ``_pre_forward``, ``_post_forward``,
    ``_pre_backward``, ``_root_post_backward_final_callback``; _fsdp_param_group.py.
    """

    def __init__(self, model: nn.Module, units: list[TracedUnit], recorder: Recorder) -> None:
        self._units, self._recorder = units, recorder
        for unit in units:
            for name in unit.modules:
                module = model.get_submodule(name)
                module.register_forward_pre_hook(
                    self._before_forward(unit, name), with_kwargs=True, prepend=True
                )
                module.register_forward_hook(self._after_forward(unit, name))

    def _mark(self, moment: Any, unit: TracedUnit) -> None:
        put_mark(self._recorder, moment, "" if unit.place == ROOT else unit.place)

    def _before_forward(self, unit: TracedUnit, _name: str) -> Any:
        def run(_module: nn.Module, args: Any, kwargs: Any) -> Any:
            self._mark("before_forward", unit)
            if unit.state == "before_backward":
                return None  # a block that is computed again
            entered, unit.state = unit.state != "forward", "forward"
            if not entered:
                return None
            unit.to_run = set(unit.modules)
            return self._watch(unit, args, kwargs)

        return run

    def _watch(self, unit: TracedUnit, args: Any, kwargs: Any) -> Any:
        # Torch's own tree functions.
        flat, spec = torch.utils._pytree.tree_flatten((args, kwargs))  # noqa: SLF001
        wanted = [
            index for index, each in enumerate(flat) if isinstance(each, torch.Tensor) and each.requires_grad
        ]
        if not torch.is_grad_enabled() or not wanted:
            return None
        apply: Any = _AfterBackward.apply
        handed = apply(lambda: self._after_backward(unit), *(flat[index] for index in wanted))
        for index, tensor in zip(wanted, handed, strict=True):
            flat[index] = tensor
        return torch.utils._pytree.tree_unflatten(flat, spec)  # noqa: SLF001

    def _after_forward(self, unit: TracedUnit, name: str) -> Any:
        def run(_module: nn.Module, _args: Any, output: Any) -> None:
            unit.to_run.discard(name)
            if unit.state == "before_backward" or unit.to_run:
                return
            self._mark("after_forward", unit)
            if torch.is_grad_enabled():
                for leaf in torch.utils._pytree.tree_leaves(output):  # noqa: SLF001
                    if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                        hook: Any = leaf.register_hook
                        hook(lambda _gradient: self._before_backward(unit))
            unit.state = "idle"

        return run

    def _before_backward(self, unit: TracedUnit) -> None:
        if unit.state != "before_backward":
            unit.state = "before_backward"
            self._mark("before_backward", unit)

    def _after_backward(self, unit: TracedUnit) -> None:
        unit.state = "after_backward"
        self._mark("after_backward", unit)

    def end_of_backward(self) -> None:
        """Units whose inputs need no gradient have not been told that their backward is over."""
        for unit in self._units:
            if unit.state != "after_backward":
                self._mark("after_backward", unit)
            unit.state = "idle"
