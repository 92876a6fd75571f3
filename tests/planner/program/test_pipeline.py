"""One group of a pipeline: buffers of its micro-batches, and what is under way."""

from __future__ import annotations

import pytest

from planner.program.step import step_of
from tests.planner.program.engines.fsdp.test_pipelined import MICROBATCHES, TOKENS, WIDTH, allocated, group


def test_every_micro_batch_has_a_place_for_what_arrives() -> None:
    """Gradients come to the first group and inputs to the last one; of two runs of layers each, twice as many
    less the two ends.
    """
    buffer = ("receive buffer", 2 * WIDTH * TOKENS)
    assert [allocated(group(rank), ("forward",))[buffer] for rank in (0, 1)] == [MICROBATCHES] * 2
    twice = [group(rank, pipeline_schedule="interleaved") for rank in (0, 1)]
    assert [allocated(each, ("forward",))[buffer] for each in twice] == [3 * MICROBATCHES] * 2


@pytest.mark.parametrize(("rank", "held"), [(0, 2), (1, 1)])
def test_a_group_holds_as_many_micro_batches_as_groups_are_behind_it_and_one(rank: int, held: int) -> None:
    """1F1B over two groups: the first one runs one ahead.  Each pass keeps its activated gate until it has
    gone back.
    """
    stream = step_of(group(rank, gradient_checkpointing=False))
    under_way, most = 0, 0
    for event in stream.events:
        part, _, op = stream.place(event if event >= 0 else ~event)
        if (part, op) == ("layer 0", "silu"):
            under_way += 1 if event >= 0 else -1
            most = max(most, under_way)
    assert (most, under_way) == (held, 0)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
def test_after_the_last_round_states_and_buffers_are_left(schedule: str) -> None:
    """No activation, no output that was sent, no gradient; nothing is freed twice."""
    for rank in (0, 1):
        stream, alive = step_of(group(rank, pipeline_schedule=schedule)), set[int]()
        for event in stream.events:
            (alive.add if event >= 0 else alive.remove)(event if event >= 0 else ~event)
        left = {stream.place(slot) for slot in alive if stream.term(slot) == "saved_activations"}
        assert left <= {("pipeline", "", "receive buffer")}
        assert "gradients" not in {stream.term(slot) for slot in alive}
