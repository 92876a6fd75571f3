"""Colossal-AI's stages 1 and 2: each parameter is divided by itself, and nothing is made beforehand."""

from __future__ import annotations

import pytest

from tests.planner.program.engines.zero.test_zero12 import TRAINED, allocated, left, stream_of

FLAGS = {"stack": "colossalai", "sharding": "zero2", "load_dtype": "bf16", "precision": "bf16-mixed"}
# The largest gradients, of the token table of Qwen2.5-0.5B; a bucket of Colossal-AI has 12 x 1024 x 1024.
TABLE, BUCKET = 151_936 * 896, 12 * 1024 * 1024


def test_masters_and_states_are_halves_and_there_are_no_buffers() -> None:
    """Two cards; every parameter has an even number of elements."""
    stream, sizes = stream_of(**FLAGS)
    end = left(stream, sizes)
    assert end["master_weights"] == 4 * TRAINED / 2
    assert end["optimizer_states"] == 8 * TRAINED / 2
    assert end["gradients"] == end["gradient_buckets"] == 0
    assert not allocated(stream, sizes, "ipg_buffer")


def test_gradients_are_summed_in_buckets_and_a_half_of_each_is_kept() -> None:
    """A gradient larger than the bucket is copied alone; both steps together sum every gradient twice."""
    stream, sizes = stream_of(**FLAGS)
    flat = allocated(stream, sizes, "flatten(gradients)")
    assert max(flat) == 2 * TABLE
    assert all(each <= 2 * BUCKET for each in flat if each != 2 * TABLE)
    assert sum(flat) == 2 * sum(allocated(stream, sizes, "received_grad"))
    assert sum(flat) % (2 * TRAINED) == 0


def test_the_step_widens_all_own_gradients_at_once() -> None:
    """On the card.  On their way to the host they pass one by one."""
    stream, sizes = stream_of(**FLAGS)
    assert sum(allocated(stream, sizes, "gradient in fp32")) % (4 * TRAINED / 2) == 0
    offloaded, small = stream_of(**FLAGS, offload="optimizer")
    assert left(offloaded, small)["master_weights"] == left(offloaded, small)["optimizer_states"] == 0
    assert sum(allocated(offloaded, small, "received_grad")) % TRAINED == 0


@pytest.mark.parametrize(("sharding", "share"), [("zero1", 0.0), ("zero2", 0.5)])
def test_stage_1_keeps_whole_sums(sharding: str, share: float) -> None:
    """Views of the flat bucket instead of a part of their own."""
    stream, sizes = stream_of(**{**FLAGS, "sharding": sharding})
    received = sum(allocated(stream, sizes, "received_grad"))
    assert received == share * sum(allocated(stream, sizes, "flatten(gradients)"))
