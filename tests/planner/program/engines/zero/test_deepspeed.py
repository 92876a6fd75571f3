"""What the stages share: memory of the engine's own, and the flat update."""

from __future__ import annotations

import pytest

from planner.program.engines.params import Param
from planner.program.engines.zero.deepspeed import GATHER_STREAM, DeepSpeed, Purpose
from planner.program.request_stream import RequestStream
from tests.planner.program.engines.zero.test_zero12 import job_of_flags, param

WHAT = Purpose("ipg_buffer", "gradient_buckets", GATHER_STREAM)


class Flat(DeepSpeed):
    """A stage whose step is the update of one flat tensor."""

    def step(self) -> None:
        """Of 1,000 elements."""
        self.update(1_000)


@pytest.fixture
def engine() -> DeepSpeed:
    """One rank of two, before anything is loaded."""
    return DeepSpeed(RequestStream(), job_of_flags(sharding="zero2"))


def test_memory_of_the_engine_is_of_a_parameter_or_its_own(engine: DeepSpeed) -> None:
    """On the stream and in the term of its purpose; nothing is freed where nothing is."""
    of: Param = param(0, 10)
    one, other = engine.take(20, WHAT, of), engine.take(30, WHAT)
    stream = engine.stream
    assert [stream.place(slot)[:2] for slot in (one, other)] == [of.place, (engine.buffers, "")]
    assert {stream.place(slot)[2] for slot in (one, other)} == {"ipg_buffer"}
    assert (stream.term(one), stream.streams[one]) == ("gradient_buckets", GATHER_STREAM)
    engine.free(one, None, other)
    engine.free_late(None, 3)
    assert stream.events.tolist() == [one, other, ~one, ~other]
    assert not stream.lags


def test_a_temporary_is_there_for_one_call(engine: DeepSpeed) -> None:
    """And what another stream still uses comes back late."""
    engine.brief(20, WHAT)
    late = engine.take(30, WHAT)
    engine.free_late(late, 3)
    assert engine.stream.events.tolist() == [0, ~0, late, ~late]
    assert engine.stream.lags == {late: 3}


def test_only_the_first_step_makes_states() -> None:
    """Two fp32 moments of AdamW over a flat tensor of 1,000 elements."""
    engine, made = Flat(RequestStream(), job_of_flags(sharding="zero2")), []
    stream = engine.stream
    for _ in range(2):
        before = len(stream.events)
        engine.optimizer_step([])
        new = [slot for slot in stream.events[before:] if slot >= 0]
        made.append([stream.unit_bytes[slot] for slot in new if stream.term(slot) == "optimizer_states"])
    assert made == [[4_000, 4_000], []]
