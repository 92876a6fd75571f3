"""The requests of a whole job in order, with sizes still in units: what the readings of a program read."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from planner.allocator.columns import in_bytes, shifted
from planner.allocator.compiled import HOST_WAITS
from planner.domain.term import STATE_TERMS, TERM_NAMES, TERM_NUMBERS, Phase, TermName
from planner.program.ops.tensors import Mark, PartStage, Unit
from planner.program.recorded_part import GRADIENT_SLOT, INPUT_SLOT, SHARED_SLOTS, Template

_HOST_COPIES = 4
"""The CUDA stream of copies to and from the host; engines have lower numbers."""


class RequestStream:
    """Allocations and frees of a job, in order.

    ``events`` hold the slot of an allocation when it is made, and its complement when it is freed.
    ``units``, ``unit_bytes``, ``kinds`` (numbers of terms) and ``streams`` (CUDA streams) describe each slot.
    ``lags``: of slots that another CUDA stream still uses when they are freed, how many later ones of their
    own stream are freed before it is done; or that they stand for a host that waits.
    ``phases``: (event it begins with, phase), in order.
    ``workspace``: the slot of what the first product takes, where there is one.  ``engine_begins``: the event
    with which autograd's engine runs for the first time.
    """

    def __init__(self) -> None:
        self.events = array("q")
        self.units = array("B")
        self.unit_bytes = array("d")
        self.kinds = array("B")
        self.streams = array("B")
        self.phases: list[tuple[int, Phase]] = []
        self.emptied: list[int] = []
        self.lags: dict[int, int] = {}
        self.workspace: int | None = None
        self.engine_begins: int | None = None
        # Parts and the first slot of each, and where every other slot was made.
        self._bases: list[int] = []
        self._parts: list[tuple[str, Template]] = []
        self._places: dict[int, tuple[str, str, str]] = {}

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        if not self.phases or self.phases[-1][1] != phase:
            self.phases.append((len(self.events), phase))

    def begin_engine(self) -> None:
        """Autograd's engine runs from here on."""
        if self.engine_begins is None:
            self.engine_begins = len(self.events)

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
        self.kinds.append(TERM_NUMBERS[term])
        self.streams.append(stream)
        self.events.append(slot)
        return slot

    def allocate_all(self, sizes: Sequence[float], term: TermName, place: tuple[str, str, str]) -> list[int]:
        """The slots of allocations of so many bytes each, one after the other, at one place."""
        slots = range(len(self.units), len(self.units) + len(sizes))
        self._places.update(dict.fromkeys(slots, place))
        self.units += array("B", [Unit.ONE]) * len(sizes)
        self.unit_bytes.extend(sizes)
        self.kinds += array("B", [TERM_NUMBERS[term]]) * len(sizes)
        self.streams += array("B", [0]) * len(sizes)
        self.events.extend(slots)
        return [*slots]

    def free(self, *slots: int | None) -> None:
        """Free what there is of ``slots``."""
        for slot in slots:
            if slot is not None:
                self.events.append(~slot)

    def free_late(self, slot: int, lag: int) -> None:
        """Free what another CUDA stream still uses (``record_stream``): its memory cannot be used again
        before ``lag`` later slots of its own stream are freed, the host waits, or the cache is given back.
        """
        self.lags[slot] = lag
        self.events.append(~slot)

    def wait(self, left: int = 0) -> None:
        """The host waits for all streams: what they used can be used again, but for the last ``left`` blocks
        of each.

        It is written as a slot without bytes.
        """
        self.free_late(self.allocate(Unit.ONE, 0, "other_temporaries", ("", "", "wait")), HOST_WAITS - left)

    def put_off(self, slot: int, ops: Collection[str]) -> None:
        """Make an allocation later: right before the first one behind it that one of ``ops`` makes."""
        start = self.events.index(slot)
        end = self._first_by(ops, start + 1)
        if end is not None and end > start + 1:
            self.events.insert(end, slot)
            self.events.pop(start)
            self.phases = [(begin - (start < begin <= end), phase) for begin, phase in self.phases]

    def take_again(self, slot: int, ops: Collection[str], start: int) -> None:
        """Allocate as much as for ``slot`` once more: right before the first allocation from event ``start``
        on that one of ``ops`` makes.
        """
        end = self._first_by(ops, start)
        if end is not None:
            unit, term = Unit(self.units[slot]), self.term(slot)
            self.events.insert(end, self.allocate(unit, self.unit_bytes[slot], term, self._places[slot]))
            self.events.pop()
            self.phases = [(begin + (begin > end), phase) for begin, phase in self.phases]

    def _first_by(self, ops: Collection[str], start: int) -> int | None:
        """The first event from ``start`` on at which one of ``ops`` allocates."""
        behind = range(start, len(self.events))
        return next((i for i in behind if self.events[i] >= 0 and self.place(self.events[i])[2] in ops), None)

    def lags_by_slot(self) -> array[int]:
        """``lags`` of every slot; empty where there is none."""
        found = array("B", bytes(len(self.units) if self.lags else 0))
        for slot, lag in self.lags.items():
            found[slot] = lag
        return found

    def add(self, name: str, template: Template) -> int:
        """The base of the slots of one more part; nothing of it is allocated yet."""
        base = len(self.units)
        self._bases.append(base)
        self._parts.append((name, template))
        columns = template.columns
        self.units += columns.units
        self.unit_bytes += columns.unit_bytes
        self.kinds += columns.kinds
        self.streams += array("B", [0]) * len(columns.units)
        for slot in template.elsewhere:
            self.streams[base + slot] = _HOST_COPIES
        return base

    def sizes(self, values: Mapping[Unit, float]) -> Sequence[int]:
        """Bytes of every allocation, where a micro-batch has so many of each unit."""
        return in_bytes(self.units, self.unit_bytes, [values[unit] for unit in Unit])

    @property
    def n_single(self) -> int:
        """Allocations outside of the parts that repeat, by loading, engines and the optimizer: writing these
        down is most of the work.
        """
        return len(self._places)

    def term(self, slot: int) -> TermName:
        """What an allocation counts as."""
        return TERM_NAMES[self.kinds[slot]]

    def state_slots(self) -> tuple[int, ...]:
        """Slots of weights, adapters and optimizer states that are there when the step ends."""
        kinds = {TERM_NUMBERS[name] for name in STATE_TERMS}
        states = {slot for slot, kind in enumerate(self.kinds) if kind in kinds}
        freed = {~slot for slot in states}.intersection(self.events)
        return tuple(sorted(states.intersection(self.events) - {~event for event in freed}))

    def place(self, slot: int) -> tuple[str, str, str]:
        """Part of the model, module and operator that made an allocation."""
        if slot in self._places:
            return self._places[slot]
        index = bisect_right(self._bases, slot) - 1
        name, made = self._parts[index]
        return name, *made.ops[slot - self._bases[index]]


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
    early: set[tuple[PartStage, int]] = field(default_factory=set)

    def slot(self, slot: int) -> int | None:
        """The slot of the stream; ``None`` for what has no memory."""
        return self.ports[slot] if slot in self.ports else slot + self.base

    def events(self, stage: PartStage) -> array[int]:
        """The events of one stage, in slots of the stream."""
        return self._moved(stage)[0]

    def between_marks(
        self, stage: PartStage, moments: Collection[str]
    ) -> Iterator[tuple[array[int], Mark | None]]:
        """The same up to each mark of ``moments``, with the mark, and what is left after the last."""
        (events, gone), start = self._moved(stage), 0
        for place, mark in self.template.marks[stage]:
            if mark.moment in moments:
                end = place - bisect_left(gone, place)
                yield events[start:end], mark
                start = end
        yield events[start:], None

    def _moved(self, stage: PartStage) -> tuple[array[int], list[int]]:
        """The events of a stage, and which of the template's are not among them."""
        events, gone = self.template.stages[stage], list[int]()
        if not events:
            return events, gone
        moved = shifted(events, self.base, SHARED_SLOTS)
        for index in self.template.foreign[stage]:
            port = self.ports.get(~events[index])
            if port is None:
                gone.append(index)
            else:
                moved[index] = ~port
        if self.early:
            early = {self.slot(slot) for where, slot in self.early if where == stage} - {None}
            places = {*self.template.foreign[stage], *self.template.shared_at[stage]}
            gone += [index for index in places if ~moved[index] in early]
        for index in sorted(gone, reverse=True):
            del moved[index]
        return moved, sorted(gone)


LAYERS = ("layer", "vision layer")
"""Names of parts that are counted."""


def labelled(parts: Iterable[tuple[str, Template, int]], first: int = 0) -> Iterator[tuple[str, Template]]:
    """Each part by itself; layers are counted from ``first`` on, those of a vision tower for themselves."""
    numbers = dict.fromkeys(LAYERS, first)
    for name, template, count in parts:
        for _ in range(count):
            yield (f"{name} {numbers[name]}" if name in numbers else name), template
            if name in numbers:
                numbers[name] += 1


def instances(
    stream: RequestStream, parts: Iterable[tuple[str, Template, int]], first: int = 0
) -> list[Instance]:
    """Every part of one micro-step, with its ports joined to its neighbours; ``first``: number of the first
    layer.
    """
    made = [
        Instance(label, template, stream.add(label, template), {})
        for label, template in labelled(parts, first)
    ]
    for before, after in pairwise(made):
        out = before.template.out_slot
        after.ports[INPUT_SLOT] = None if out is None else before.slot(out)
    made[0].ports[INPUT_SLOT] = made[-1].ports[GRADIENT_SLOT] = None
    for before, after in zip(reversed(made[:-1]), reversed(made[1:]), strict=True):
        slot = after.template.gradient_slot
        before.ports[GRADIENT_SLOT] = None if slot is None else after.slot(slot)
    _share(made)
    return made


_LAST_FIRST: tuple[PartStage, ...] = (
    *("backward_end", "backward_out", "backward"),
    *("forward_out", "forward_end", "forward", "forward_next"),
)
"""Stages in which a shared tensor may go, from the latest on."""


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
    for stage in _LAST_FIRST:
        for each, known in order if stage in ("backward", "backward_out") else order[::-1]:
            for own in reversed(each.template.freed_shares[stage]):
                slot = known.get(own)
                if slot is None:
                    continue
                if slot in freed:
                    each.early.add((stage, own))
                freed.add(slot)
