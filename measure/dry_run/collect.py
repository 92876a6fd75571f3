"""The log of the pretended card -> the records and events that every trace has."""

from __future__ import annotations

from dataclasses import replace

from measure.dry_run.cuda.native import ACCUMULATES, ALLOC, EMPTY_CACHE, FREE_REQUESTED, Native, NativeEvent
from measure.dry_run.stages import Stages
from measure.trace.labels import to_events
from measure.trace.record import Place, Record, Role, TracedBlock, emptied
from planner.allocator.events import NO_BLOCK, AllocEvent
from planner.units import MIB


def events_of(native: Native, stages: Stages) -> dict[int, list[AllocEvent]]:
    """All events in order, with phase, term, operator and module, of each card that multiplied something or
    holds more than small numbers.
    """
    events, cards = _Collector(native, stages).run(), _cards_of(native)
    held: dict[int, list[AllocEvent]] = {card: [] for card in sorted({*cards.values(), 0})}
    for event in events:
        for card in held if event.block == NO_BLOCK else (cards[event.block],):
            held[card].append(event)
    return {card: own for card, own in held.items() if card == 0 or _is_used(own)}


def _cards_of(native: Native) -> dict[int, int]:
    """The card of each block."""
    rows = (NativeEvent(*row) for row in native.rows().tolist())
    return {event.id: event.device for event in rows if event.kind == ALLOC}


def _is_used(events: list[AllocEvent]) -> bool:
    """Whether a card holds anything of the training: Accelerate asks each one with a number
    (``get_max_memory``).
    """
    return max((event.n_bytes for event in events), default=0) > MIB


class _Collector:
    def __init__(self, native: Native, stages: Stages) -> None:
        self._native, self._stages = native, stages
        self._blocks: dict[int, TracedBlock] = {}
        self._names: dict[int, str] = {}
        self._last_path, self._place = "", Place("load", 0)

    def run(self) -> list[AllocEvent]:
        records: list[Record] = []
        waits: list[bool] = []
        for row in self._native.rows().tolist():
            event = NativeEvent(*row)
            records.append(self._record(event))
            waits.append(event.kind == FREE_REQUESTED)
        return _with_waits(records, waits)

    def _record(self, event: NativeEvent) -> Record:
        stage, micro_step, path = self._stages.places[event.place]
        if (stage, micro_step) != (self._place.stage, self._place.micro_step):
            self._last_path, self._place = "", Place(stage, micro_step)
        if event.kind == EMPTY_CACHE:
            return emptied(self._place)
        if event.kind != ALLOC:
            return Record(False, self._blocks[event.id], self._place)
        recomputed = stage == "backward" and bool(path)
        if not path and stage == "backward":
            path = self._path_of_node(event.node)
        self._last_path, self._place = path, Place(stage, micro_step, self._stages.modules.layer_of(path))
        operator = self._operator(event.op)
        block = TracedBlock(
            event.id, event.n_bytes, self._place, operator, path, recomputed, stream=event.stream
        )
        block.role = self._role(event, block)
        self._blocks[event.id] = block
        return Record(True, block, self._place)

    def _path_of_node(self, node: int) -> str:
        """Module that made an autograd node;
        one that accumulates a gradient belongs to the node before it.
        """
        if node == ACCUMULATES:
            return self._last_path
        return self._stages.modules.path_at(node) if node >= 0 else ""

    def _operator(self, number: int) -> str:
        if number not in self._names:
            self._names[number] = self._native.operator(number)
        return self._names[number]

    def _role(self, event: NativeEvent, block: TracedBlock) -> Role:
        known = self._stages.roles.get(event.id)
        if known is not None:
            return known
        if block.op.endswith("workspace"):
            return "workspace"
        if block.op == "storage.resize_":
            # Both versions of FSDP gather into storages that they had emptied.
            # Source: torch 2.13 distributed/utils.py _alloc_storage, fsdp/_fully_shard/_fsdp_param.py.
            return "gathered_parameters"
        if block.place.stage in ("forward", "backward"):
            source = self._blocks.get(event.source)
            if (
                block.op == "aten._to_copy.default"
                and source is not None
                and source.role in ("weights", "adapters")
            ):
                return "autocast_copies"
            if block.op.startswith("bitsandbytes.") and "dequantize" in block.op:
                return "dequantization"
        return ""


def _with_waits(records: list[Record], waits: list[bool]) -> list[AllocEvent]:
    """Events of ``records``; a free that waits for another stream is the request,
    and a second one follows it.
    """
    labelled = to_events(records)
    return [
        replace(event, action="free_requested") if wait else event
        for event, wait in zip(labelled, waits, strict=True)
    ]
