"""A part of the model run once: the record that every layer like it repeats.

A template has two ports.  Slot 0 is its input, which the part before it made; slot 1 is the gradient of its
output, which the part behind it made.  Tensors that one part makes for several others (rotary tables, masks)
have slots from ``SHARED_SLOTS`` on wherever they were not made.
"""

from __future__ import annotations

import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from planner.domain.term import TERM_NUMBERS, TermName
from planner.program.ops.autograd import LEAF_ORDER, run_backward
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Mark, Node, Parameter, PartStage, Storage, Tensor, Unit
from planner.program.ops.work import Work
from planner.program.saved_on_host import SavedOnHost, on_host

INPUT_SLOT, GRADIENT_SLOT = 0, 1
SHARED_SLOTS = 1_000_000_000
_STAGES: tuple[PartStage, ...] = get_args(PartStage)
Gradients = Literal["first", "added", "none"]
Saves = Literal["here", "on_host", "on_host_last"]
"""Saved tensors stay on the GPU, or wait in host RAM; behind the last part nothing pushes them out."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Elements of a tensor between parts for each ``unit``, their dtype, and whether it needs a gradient.

    ``shared``: its name, where more than the next part refer to it.  ``leaf``: no operator sends its gradient
    on, because it was made to require one.
    """

    count: float
    dtype: Dtype
    needs_grad: bool
    unit: Unit = Unit.TOKENS
    shared: str = ""
    leaf: bool = False


NO_INPUT = Shape(2, "fp32", False)
"""The input of a part that has none; a port all the same, so that slots count alike."""


class Columns(NamedTuple):
    """What describes each slot of a template, as a stream has it: units, bytes for each of one,
    numbers of terms.
    """

    units: array[int]
    unit_bytes: array[float]
    kinds: array[int]


@dataclass(frozen=True, slots=True)
class Template:
    """What one run recorded: each allocation's unit, bytes, term and operator by slot,
    and the events of each stage.

    ``out_slot`` and ``gradient_slot`` are the output and the gradient of the input.
    ``gradients``: unit, count, dtype, slot and module of each that parameters keep.  ``out``: shape of the
    output.

    ``shares``: slot and shape of each tensor that the part makes for others, by name.  ``crossing``: names of
    those that others made, whose slots count from ``SHARED_SLOTS``.

    ``foreign``: where each stage frees what other parts made.  ``freed_shares``: slots of what is shared that
    each stage frees, and ``shared_at`` where.

    ``work``: what all operators cost together.  ``elsewhere``: slots in memory of a second CUDA stream.

    For engines: ``marks`` of each stage, each after so many of its events; ``modules``, paths of names;
    ``parameters``, by their numbers.
    """

    units: tuple[Unit, ...]
    unit_bytes: tuple[float, ...]
    terms: tuple[TermName, ...]
    ops: tuple[tuple[str, str], ...]
    stages: dict[str, array[int]]
    out_slot: int | None
    gradient_slot: int | None
    gradients: tuple[tuple[Unit, float, Dtype, int, str], ...]
    out: Shape
    marks: dict[str, tuple[tuple[int, Mark], ...]]
    modules: tuple[tuple[str, ...], ...]
    parameters: tuple[Parameter, ...]
    work: Work
    elsewhere: tuple[int, ...] = ()
    shares: dict[str, tuple[int, Shape]] = field(default_factory=dict)
    crossing: tuple[str, ...] = ()
    foreign: dict[str, tuple[int, ...]] = field(init=False)
    freed_shares: dict[str, tuple[int, ...]] = field(init=False)
    shared_at: dict[str, tuple[int, ...]] = field(init=False)
    columns: Columns = field(init=False)

    def __post_init__(self) -> None:
        own = {slot for slot, _ in self.shares.values()}
        at = {
            stage: tuple(
                index for index, event in enumerate(events) if ~event >= SHARED_SLOTS or ~event in own
            )
            for stage, events in self.stages.items()
        }
        shared = {stage: tuple(~self.stages[stage][index] for index in found) for stage, found in at.items()}
        foreign = {stage: _foreign(events) for stage, events in self.stages.items()}
        object.__setattr__(self, "foreign", foreign)
        object.__setattr__(self, "freed_shares", shared)
        object.__setattr__(self, "shared_at", at)
        kinds = array("B", map(TERM_NUMBERS.__getitem__, self.terms))
        object.__setattr__(
            self, "columns", Columns(array("B", self.units), array("d", self.unit_bytes), kinds)
        )

    def in_units(self, units: Mapping[Unit, Unit]) -> Template:
        """The same with other units in place of those named."""
        made, changed = copy(self), tuple(units.get(unit, unit) for unit in self.units)
        # Not ``replace``, which would look for what crosses once more.
        object.__setattr__(made, "units", changed)
        object.__setattr__(made, "columns", self.columns._replace(units=array("B", changed)))
        return made


def _foreign(events: Sequence[int]) -> tuple[int, ...]:
    """Where a stage frees what another part made."""
    return tuple(
        index for index, event in enumerate(events) if event < 0 and not GRADIENT_SLOT < ~event < SHARED_SLOTS
    )


@dataclass(frozen=True, slots=True)
class Terms:
    """What an allocation counts as that no operator named: ``saved`` until backward, or ``temporary``."""

    saved: TermName
    temporary: TermName


def run(
    part: Callable[[Operators, Tensor], Tensor],
    entry: Shape,
    terms: Terms,
    given: Mapping[str, Shape] = MappingProxyType({}),
    *,
    gradients: Gradients = "first",
    saves: Saves = "here",
) -> Template:
    """Run ``part`` forward and backward, once, on an input of shape ``entry``.

    ``given``: shapes of what other parts share with it, by the name that the part knows it by.
    ``gradients``: those of parameters are the ``first``, are ``added`` to those of the micro-step before, or
    are not made at all (``none``).  ``saves``: where saved tensors wait for their backward.
    """
    torch = Operators(accumulates=gradients == "added")
    torch.grad_enabled = gradients != "none"
    hooks = None if saves == "here" else on_host(torch)
    torch.enter("ports")
    crossing = [shape.shared for shape in (entry, *given.values()) if shape.shared]
    arguments = [torch.new(entry.unit, entry.count, entry.dtype, "input", cost=None)]
    if entry.shared:
        arguments = [_given(torch, entry, crossing)]
    arrived = [torch.new(Unit.TOKENS, entry.count, entry.dtype, "gradient", cost=None)]
    torch.shared = {name: _given(torch, shape, crossing) for name, shape in given.items()}
    port = Node("input", sys.maxsize, None)
    arguments[0].node = port if entry.needs_grad else None
    torch.leaf = port if entry.leaf else None
    torch.enter("forward")
    out = part(torch, arguments.pop())
    torch.leaf = None
    if hooks is not None and saves == "on_host":
        hooks.end_forward()
    _return(torch)
    # What a part made belongs to the next one, or to all that share it; what it still refers to counts.
    torch.enter("nowhere")
    shares, out_slot = _shares(torch), _slot(out)
    torch.shared.clear()
    name = next((name for name, (slot, _) in shares.items() if slot == out_slot), "")
    graph = [out.node]
    needs_grad, is_leaf = out.node is not None, out.node is not None and out.node.order == LEAF_ORDER
    shape = Shape(out.count, out.dtype, needs_grad, out.unit, name, is_leaf)
    out.node = None
    kept = None if name else out
    del out
    arrived[0].unit, arrived[0].count, arrived[0].dtype = shape.unit, shape.count, shape.dtype
    _go_back(torch, graph[0], arrived, hooks)
    _end(torch, graph)
    torch.enter("nowhere")
    del kept
    end = _End(shape, out_slot, _slot(port.grad), shares | _shares(torch), tuple(crossing))
    return _template(torch, end, terms)


def _go_back(torch: Operators, root: Node | None, arrived: list[Tensor], hooks: SavedOnHost | None) -> None:
    torch.enter("backward")
    if root is not None:
        run_backward(torch, root, arrived)
        torch.go_back_to(())
    if hooks is not None:
        hooks.end_backward()
        torch.enter("backward_next")
        hooks.back.clear()


def _return(torch: Operators) -> None:
    """After forward goes what the next layer takes, then the cast weights."""
    torch.enter("forward_next")
    torch.returned.clear()
    torch.enter("forward_end")
    torch.autocast_cache.clear()


def _end(torch: Operators, graph: list[Node | None]) -> None:
    """After backward goes what hooks refer to, then the graph,
    and last what the loop keeps until the model returns again.
    """
    torch.enter("backward_out")
    torch.hooked.clear()
    torch.enter("backward_end")
    torch.outputs.clear()
    graph.clear()
    torch.enter("returns_again")
    torch.bound.clear()


def _given(torch: Operators, shape: Shape, crossing: list[str]) -> Tensor:
    """A tensor that another part made."""
    return Tensor(
        Storage(torch, SHARED_SLOTS + crossing.index(shape.shared)), shape.unit, shape.count, shape.dtype
    )


def _shares(torch: Operators) -> dict[str, tuple[int, Shape]]:
    """Slot and shape of what a part made for others."""
    found = {
        name: (_slot(each), Shape(each.count, each.dtype, False, each.unit, name))
        for name, each in torch.shared.items()
    }
    return {
        name: (slot, shape)
        for name, (slot, shape) in found.items()
        if slot is not None and slot < SHARED_SLOTS
    }


def _slot(tensor: Tensor | None) -> int | None:
    return None if tensor is None or tensor.storage is None else tensor.storage.slot


def _kept_slots(torch: Operators, out_slot: int | None) -> set[int]:
    """Slots of the forward pass that outlive it."""
    kept: set[int] = set() if out_slot is None else {out_slot}
    events = torch.stages.get("forward", [])
    return kept | ({event for event in events if event >= 0} - {~event for event in events if event < 0})


class _End(NamedTuple):
    """What a part leaves to others, as the fields of a template."""

    out: Shape
    out_slot: int | None
    gradient_slot: int | None
    shares: dict[str, tuple[int, Shape]]
    crossing: tuple[str, ...]


def _template(torch: Operators, end: _End, terms: Terms) -> Template:
    kept = _kept_slots(torch, end.out_slot)
    marks = defaultdict[str, list[tuple[int, Mark]]](list)
    for stage, place, mark in torch.marks:
        marks[stage].append((place, mark))
    return Template(
        units=tuple(torch.units),
        unit_bytes=tuple(torch.unit_bytes),
        terms=tuple(
            term or (terms.saved if slot in kept else terms.temporary)
            for slot, term in enumerate(torch.terms)
        ),
        ops=tuple(torch.ops),
        stages={name: array("q", torch.stages.get(name, ())) for name in _STAGES},
        **end._asdict(),
        gradients=tuple(
            (node.grad.unit, node.grad.count, node.grad.dtype, node.grad.storage.slot, node.name)
            for node in torch.leaves
            if node.grad is not None and node.grad.storage is not None
        ),
        marks={name: tuple(marks[name]) for name in _STAGES},
        modules=tuple(torch.modules),
        parameters=tuple(torch.parameters),
        work=torch.work,
        elsewhere=tuple(torch.elsewhere),
    )
