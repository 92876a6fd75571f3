"""What another stream still uses comes back when the host has waited for an event behind it."""

from __future__ import annotations

from tests.extras import import_or_skip

import_or_skip("torch")

from measure.trace.record import Place, Record, Role, TracedBlock
from measure.trace.sharding.late_records import LateRecords
from measure.trace.sharding.shard_records import GATHER_STREAM, TracedPurpose
from tests.measure.trace.sharding.made import held

BUFFER = TracedPurpose("buffer", "gathered_parameters", GATHER_STREAM)
BACKWARD = Place("backward", 0)


def test_an_event_brings_back_what_was_let_go_of_before_it() -> None:
    """What came behind the event waits for the next one, or for all."""
    stream = LateRecords(0)
    first, second = stream.take(3, BUFFER), stream.take(4, BUFFER)
    stream.free_behind(first)
    event = stream.event()
    stream.free_behind(second)
    assert held(stream) == {"buffer": 7}
    stream.wait_for(event)
    assert held(stream) == {"buffer": 4}
    stream.wait_for()
    assert not held(stream)


def _block(number: int, op: str, role: Role) -> TracedBlock:
    return TracedBlock(number, 8, BACKWARD, op, "table", role=role)


def test_a_sum_of_gradients_is_made_where_parameters_were_split() -> None:
    """What it was made of waits for the host; other blocks of the modules go at once."""
    stream = LateRecords(10)
    part, total = _block(0, "aten.mm.default", "gradient_parts"), _block(1, "aten.add.Tensor", "gradients")
    other = _block(2, "aten.add.Tensor", "")
    for each in (part, total, other):
        stream.pass_on(Record(True, each, BACKWARD))
    for each in (part, other):
        stream.pass_on(Record(False, each, BACKWARD))
    assert (total.stream, other.stream) == (GATHER_STREAM, 0)
    assert held(stream) == {"aten.mm.default": 8, "aten.add.Tensor": 8}
    stream.wait_for()
    assert held(stream) == {"aten.add.Tensor": 8}
