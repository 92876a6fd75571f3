"""Parameters and settings made by hand, and what a rank has written."""

from __future__ import annotations

from collections import Counter
from typing import Any

from measure.trace.record import ParameterNote, Place, Record, TracedBlock
from measure.trace.sharding.runtime_settings import HostSettings, ZeroSettings
from measure.trace.sharding.shard_records import RankRecords
from measure.trace.sharding.sharded_parameters import FROZEN, TracedParameter

FIRST_ID = 1000
ON_CARD = HostSettings(pins=False, pins_masters=False, upload="buffer_on_host")


def parameter(name: str, *shape: int, module: str = "layers.0", **more: Any) -> TracedParameter:
    """A trained 16-bit parameter of a layer."""
    given = {"element_bytes": 2, "group": 0, "layer": 0, "stored_bytes": 2, **more}
    return TracedParameter((module, name), shape, **given)


def frozen(name: str, *shape: int, **more: Any) -> TracedParameter:
    """One that no optimizer has."""
    return parameter(name, *shape, group=FROZEN, **more)


def loading(each: TracedParameter, number: int = 0) -> Record:
    """The record that would allocate it whole."""
    place = Place("load", 0, each.layer)
    module, name = each.key
    note = ParameterNote(name, each.shape, each.element_bytes, each.group, stored_bytes=each.stored_bytes)
    block = TracedBlock(number, each.n_bytes, place, "empty", module, role="weights", parameter=note)
    return Record(True, block, place)


def gradient(each: TracedParameter, number: int) -> TracedBlock:
    """The block of its gradient."""
    return TracedBlock(number, each.n_bytes, Place("backward", 0, 0), "mm", each.key[0], role="gradients")


def zero(**changes: Any) -> ZeroSettings:
    """A DeepSpeed run of two processes without extras, seen from the last one."""
    plain: dict[str, Any] = {
        "stage": 2, "world": 2, "rank": 1, "element_bytes": 2, "bucket_elements": 16, "overlaps": False,
        "accumulates": False, "offloads_optimizer": False, "offloads_params": False, "host": ON_CARD,
        "quantized": False, "waits_for_copies": False, "casts_on_host": False, "hooks_into_copies": False,
        "counts_early": False, "keeps_recomputed": True,
        "for_model": False, "makes_graph": True,
        "checks_overflow": False, "flattens_below": None, "begins_empty": False, "untied_elements": 0,
        "prefetch_elements": 1000, "persistence_elements": 4, "max_live_elements": 1_000_000_000,
        "max_reuse_elements": 1_000_000_000, "sub_group_elements": 1_000_000_000,
    }  # fmt: skip
    return ZeroSettings(**{**plain, **changes})


def taken(stream: RankRecords, name: str) -> list[int]:
    """Bytes of each allocation of this name, in order."""
    return [each.block.n_bytes for each in stream.records if each.alloc and each.block.op == name]


def held(stream: RankRecords) -> Counter[str]:
    """Bytes that are still allocated, by name; a second free of what waits is the one that counts."""
    live: Counter[str] = Counter()
    for each in stream.records:
        if each.alloc:
            live[each.block.op] += each.block.n_bytes
        elif not each.waits:
            live[each.block.op] -= each.block.n_bytes
    return +live
