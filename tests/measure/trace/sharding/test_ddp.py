"""What DDP copies to make all ranks equal."""

from __future__ import annotations

from dataclasses import replace

from measure.trace.record import OUTSIDE, Place, Record
from measure.trace.sharding.ddp import with_buckets
from measure.trace.sharding.shard_records import RankRecords
from planner.units import MIB
from tests.measure.trace.sharding.made import frozen, loading, parameter, taken

LARGE = 300 * MIB // 2


def at(record: Record, number: int, layer: int) -> Record:
    """The same, of a parameter that is at ``number`` in the model."""
    place = Place("load", 0, layer)
    assert record.block.parameter is not None
    record.block.parameter = replace(record.block.parameter, number=number)
    record.block.place = place
    return replace(record, place=place)


def test_parameters_are_sent_in_the_order_of_their_modules() -> None:
    """The table, which fills a copy alone, comes first, though it was loaded last, and is sent as it is."""
    norm, table = frozen("norm", 1024), frozen("table", LARGE, module="embed")
    first, second = (frozen("weight", 1024, module=f"layers.{layer}") for layer in (0, 1))
    trained = parameter("lora", 1024, module="layers.1", element_bytes=4)
    records = [
        at(loading(norm, 1), 8, OUTSIDE),
        at(loading(first, 2), 2, 0),
        at(loading(second, 3), 2, 1),
        at(loading(trained, 4), 3, 1),
        at(loading(table, 5), 0, OUTSIDE),
        Record(False, loading(norm, 1).block, Place("forward", 0)),
    ]
    stream = RankRecords(0)
    stream.records = with_buckets(records, finds_unused=True)
    assert taken(stream, "DDP broadcast") == [3 * 2048]
