"""The requests of a whole job in order, with sizes still in units: what the readings of a program read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import invert

from planner.domain.term import STATE_TERMS, Phase, TermName
from planner.program.template import (
    BACKWARD,
    BACKWARD_END,
    BACKWARD_OUT,
    FORWARD,
    FORWARD_END,
    FORWARD_NEXT,
    FORWARD_OUT,
    FORWARD_RETURN,
    GRADIENT_SLOT,
    INPUT_SLOT,
    SHARED_SLOTS,
    Template,
    foreign_events,
)
from planner.program.tensors import MARK, Dtype, Unit


@dataclass(frozen=True, slots=True)
class Trained:
    """One trained parameter: ``count`` elements for each of ``unit``, and the slot of its gradient."""

    unit: Unit
    count: float
    dtype: Dtype
    gradient_slot: int
    name: str


class Stream:
    """Allocations and frees of a job, in order.

    ``events`` hold the slot of an allocation when it is made, and its complement when it is freed.
    ``units``, ``unit_bytes``, ``terms`` and ``streams`` (CUDA streams) describe each slot.  ``phases``:
    (event it begins with, phase), in order.
    """

    def __init__(self) -> None:
        self.events: list[int] = []
        self.units: list[Unit] = []
        self.unit_bytes: list[float] = []
        self.terms: list[TermName] = []
        self.streams: list[int] = []
        self.phases: list[tuple[int, Phase]] = []
        self.emptied: list[int] = []
        # Parts and the first slot of each, and where every other slot was made.
        self._bases: list[int] = []
        self._parts: list[tuple[str, Template]] = []
        self._places: dict[int, tuple[str, str, str]] = {}

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        if not self.phases or self.phases[-1][1] != phase:
            self.phases.append((len(self.events), phase))

    def empty_cache(self) -> None:
        """Cached segments go back to the driver; the phase begins a second time."""
        self.emptied.append(len(self.phases))
        self.phases.append((len(self.events), self.phases[-1][1]))

    def allocate(
        self, unit: Unit, unit_bytes: float, term: TermName, place: tuple[str, str, str], stream: int = 0
    ) -> int:
        """The slot of a new allocation; ``place``: part of the model, module, operator."""
        slot = len(self.units)
        self._places[slot] = place
        self.units.append(unit)
        self.unit_bytes.append(unit_bytes)
        self.terms.append(term)
        self.streams.append(stream)
        self.events.append(slot)
        return slot

    def free(self, slot: int) -> None:
        """Free an allocation."""
        self.events.append(~slot)

    def add(self, name: str, template: Template) -> int:
        """The base of the slots of one more part; nothing of it is allocated yet."""
        base = len(self.units)
        self._bases.append(base)
        self._parts.append((name, template))
        self.units += template.units
        self.unit_bytes += template.unit_bytes
        self.terms += template.terms
        self.streams += (0,) * len(template.units)
        return base

    def sizes(self, values: Mapping[Unit, float]) -> list[int]:
        """Bytes of every allocation, where a micro-batch has so many of each unit."""
        known: dict[int, list[int]] = {}
        sizes: list[int] = []
        for base, (_, made) in zip(self._bases, self._parts, strict=True):
            alone = slice(len(sizes), base)
            sizes += _sizes(self.units[alone], self.unit_bytes[alone], values)
            if id(made) not in known:
                known[id(made)] = _sizes(made.units, made.unit_bytes, values)
            sizes += known[id(made)]
        alone = slice(len(sizes), len(self.units))
        return sizes + _sizes(self.units[alone], self.unit_bytes[alone], values)

    def state_slots(self) -> tuple[int, ...]:
        """Slots of weights, adapters and optimizer states that are there when the step ends."""
        states = {slot for slot, term in enumerate(self.terms) if term in STATE_TERMS}
        freed = {~slot for slot in states}.intersection(self.events)
        return tuple(sorted(states.intersection(self.events) - {~event for event in freed}))

    def place(self, slot: int) -> tuple[str, str, str]:
        """Part of the model, module and operator that made an allocation."""
        if slot in self._places:
            return self._places[slot]
        index = bisect_right(self._bases, slot) - 1
        name, made = self._parts[index]
        return name, *made.ops[slot - self._bases[index]]


def lasting(events: Sequence[int]) -> set[int]:
    """Those of ``events`` that their complement does not undo:
    a slot is allocated once and freed at most once.
    """
    seen = set(events)
    return seen.difference(map(invert, seen))


def _sizes(units: Sequence[Unit], unit_bytes: Sequence[float], values: Mapping[Unit, float]) -> list[int]:
    return [round(each * values[unit]) for unit, each in zip(units, unit_bytes, strict=True)]


@dataclass(slots=True)
class Instance:
    """One part of the model in one micro-step, whose slots count from ``base``.

    ``ports``: where slots that another part made really lie.  ``early``: stage and slot of what the part lets
    go of while others still refer to it.
    """

    name: str
    template: Template
    base: int
    ports: dict[int, int | None]
    early: set[tuple[str, int]] = field(default_factory=set)

    def slot(self, slot: int) -> int | None:
        """The slot of the stream; ``None`` for what has no memory."""
        return self.ports[slot] if slot in self.ports else slot + self.base

    def events(self, stage: str) -> list[int]:
        """The events of one stage, in slots of the stream."""
        return self._moved(stage, self.template.stages[stage], self.template.foreign[stage])

    def marked_events(self, stage: str) -> list[int]:
        """The same with the marks of the template among them."""
        events = self.template.marked[stage]
        return self._moved(stage, events, foreign_events(events))

    def _moved(self, stage: str, events: Sequence[int], foreign: Sequence[int]) -> list[int]:
        base = self.base
        moved = [event + base if event >= 0 else event - base for event in events]
        for index in reversed(foreign):
            event = events[index]
            if event >= MARK:
                moved[index] = event
            else:
                port = self.ports.get(~event)
                moved[index : index + 1] = [] if port is None else [~port]
        if self.early:
            gone = {self.slot(slot) for where, slot in self.early if where == stage}
            moved = [event for event in moved if ~event not in gone]
        return moved


LAYERS = ("layer", "vision layer")
"""Names of parts that are counted."""


def labelled(parts: Iterable[tuple[str, Template, int]]) -> Iterator[tuple[str, Template]]:
    """Each part by itself; layers are counted, those of a vision tower for themselves."""
    numbers = dict.fromkeys(LAYERS, 0)
    for name, template, count in parts:
        for _ in range(count):
            yield (f"{name} {numbers[name]}" if name in numbers else name), template
            if name in numbers:
                numbers[name] += 1


def instances(stream: Stream, parts: Iterable[tuple[str, Template, int]]) -> list[Instance]:
    """Every part of one micro-step, with its ports joined to its neighbours."""
    made = [Instance(label, template, stream.add(label, template), {}) for label, template in labelled(parts)]
    for before, after in pairwise(made):
        out = before.template.out_slot
        after.ports[INPUT_SLOT] = None if out is None else before.slot(out)
    made[0].ports[INPUT_SLOT] = made[-1].ports[GRADIENT_SLOT] = None
    for before, after in zip(reversed(made[:-1]), reversed(made[1:]), strict=True):
        slot = after.template.gradient_slot
        before.ports[GRADIENT_SLOT] = None if slot is None else after.slot(slot)
    _share(made)
    return made


def _share(made: list[Instance]) -> None:
    """Join what parts share; only the last of those that let go of a tensor frees it."""
    slots = {name: each.slot(slot) for each in made for name, (slot, _) in each.template.shares.items()}
    crossing = [{slot: slots[name] for name, (slot, _) in each.template.shares.items()} for each in made]
    for each, known in zip(made, crossing, strict=True):
        ports = {SHARED_SLOTS + index: slots.get(name) for index, name in enumerate(each.template.crossing)}
        each.ports.update(ports)
        known.update(ports)
    freed: set[int] = set()
    order = list(zip(made, crossing, strict=True))
    stages = (
        (BACKWARD_END, order[::-1]),
        (BACKWARD_OUT, order),
        (BACKWARD, order),
        (FORWARD_OUT, order[::-1]),
        (FORWARD_END, order[::-1]),
        (FORWARD_RETURN, order[::-1]),
        (FORWARD, order[::-1]),
        (FORWARD_NEXT, order[::-1]),
    )
    for stage, parts in stages:
        for each, known in parts:
            for own in reversed(each.template.freed_shares[stage]):
                slot = known.get(own)
                if slot is None:
                    continue
                if slot in freed:
                    each.early.add((stage, own))
                freed.add(slot)
