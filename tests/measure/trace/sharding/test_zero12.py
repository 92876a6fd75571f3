"""One rank under ZeRO-1 and 2: a matrix of 12 elements and a vector of 10, over two processes.

22 elements are padded to 24, so each process updates 12: the first the matrix, the last the vector.
"""

from __future__ import annotations

from typing import Any

import pytest

from measure.trace.sharding.runtime_settings import HostSettings
from measure.trace.sharding.shard_records import RankRecords
from measure.trace.sharding.zero12 import TracedZero12
from tests.measure.trace.sharding.made import (
    FIRST_ID,
    frozen,
    gradient,
    held,
    loading,
    parameter,
    taken,
    zero,
)

MATRIX, VECTOR = parameter("weight", 3, 4), parameter("bias", 10)


def loaded(**changes: Any) -> tuple[RankRecords, TracedZero12]:
    """A rank before its first forward."""
    stream = RankRecords(FIRST_ID)
    rank = TracedZero12(stream, zero(**changes))
    for number, each in enumerate((MATRIX, VECTOR)):
        rank.load(each, loading(each, number))
    assert rank.shard_groups() == [[(12,)]]
    rank.set_up([[[]], [[]]])
    return stream, rank


@pytest.mark.parametrize(("room", "on_card"), [(None, True), (100, True), (60, False), (0, False)])
def test_weights_become_one_buffer_with_a_master_of_this_part(room: int | None, *, on_card: bool) -> None:
    """48 bytes of flat weights and 48 of fp32 master; old weights go after the buffer came, or before, where
    a card has no room for both.
    """
    stream, _ = loaded(flattens_below=room)
    assert held(stream) == {"bit16_groups_flat": 24 * 2, "single_partition_of_fp32_groups": 12 * 4}
    assert taken(stream, "initialize_optimizer_states") == [12 * 4]
    operations = [each.block.op for each in stream.records if not each.alloc or "flat" in each.block.op]
    assert operations[:4] == (
        ["torch.cuda.empty_cache", "bit16_groups_flat", "empty", "empty"]
        if on_card
        else ["empty", "empty", "torch.cuda.empty_cache", "bit16_groups_flat"]
    )


def test_a_k_bit_model_is_cast_when_all_of_it_is_there() -> None:
    """What adapters' preparation widened lies beside its 16-bit copy; packed bytes stay as they are."""
    wide, packed = frozen("norm", 64, stored_bytes=4), frozen("packed", 8, element_bytes=1, stored_bytes=1)
    stream = RankRecords(FIRST_ID)
    rank = TracedZero12(stream, zero(quantized=True))
    for number, each in enumerate((wide, packed, MATRIX, VECTOR)):
        rank.load(each, loading(each, number))
    assert taken(stream, "empty") == [8, *(each.n_bytes for each in (MATRIX, VECTOR))]
    rank.shard_groups()
    rank.set_up([[[]], [[]]])
    assert taken(stream, "parameter before it is cast") == [256]
    assert taken(stream, "empty")[-1] == 128
    assert held(stream)["parameter before it is cast"] == 0


def test_own_gradients_gather_in_one_buffer_and_step_in_fp32() -> None:
    """The vector's 10 elements stay for the step; the bucket of 16 goes with the backward."""
    stream, rank = loaded()
    for number, each in ((50, VECTOR), (51, MATRIX)):
        rank.gradient(each, gradient(each, number), boundary=True)
        assert stream.records[-1].block.id == number, "it was not copied into the bucket"
    assert taken(stream, "ipg_buffer") == [16 * 2]
    rank.end_of_backward(boundary=True)
    assert held(stream)["grads_in_partition"] == 10 * 2
    assert held(stream)["ipg_buffer"] == 0
    rank.step(0)
    assert taken(stream, "norm in fp64") == [10 * 8]
    assert taken(stream, "flat gradients in fp32") == [12 * 4]
    assert taken(stream, "flatten(averaged_gradients)") == [], "one gradient is not flattened"
    assert held(stream).keys() == {"bit16_groups_flat", "single_partition_of_fp32_groups"}


def test_a_gradient_larger_than_a_bucket_stays_until_it_is_reduced() -> None:
    """With buckets of 8 elements it is sent from where it is; two buckets where they overlap."""
    stream, rank = loaded(bucket_elements=8, overlaps=True)
    rank.gradient(VECTOR, gradient(VECTOR, 50), boundary=True)
    assert all(each.block.id != 50 for each in stream.records)
    rank.gradient(MATRIX, gradient(MATRIX, 51), boundary=True)
    assert [each.block.id for each in stream.records if not each.alloc][-1] == 50
    assert taken(stream, "ipg_buffer") == [8 * 2] * 2


@pytest.mark.parametrize(
    ("changes", "late"),
    [({"overlaps": True}, True), ({}, False), ({"overlaps": True, "offloads_optimizer": True}, False)],
)
def test_a_gradient_that_another_stream_reduces_comes_back_late(changes: dict[str, bool], late: bool) -> None:
    """Unless the host waits for each copy, as with an optimizer in its RAM."""
    stream, rank = loaded(bucket_elements=8, **changes)
    for number, each in ((50, VECTOR), (51, MATRIX)):
        rank.gradient(each, gradient(each, number), boundary=True)
    own = [each for each in stream.records if not each.alloc and each.block.id == 50]
    assert any(each.waits for each in own) is late


def test_stage_1_keeps_gradients_between_micro_steps() -> None:
    """The second gradient of a parameter is added to the first, and goes at once."""
    stream, rank = loaded(stage=1)
    rank.gradient(VECTOR, gradient(VECTOR, 50), boundary=False)
    rank.end_of_backward(boundary=False)
    assert taken(stream, "grads_in_partition") == []
    rank.gradient(VECTOR, gradient(VECTOR, 60), boundary=True)
    assert stream.records[-1].block.id == 60
    rank.end_of_backward(boundary=True)
    assert {each.block.id for each in stream.records if not each.alloc} >= {50, 60}
    assert taken(stream, "grads_in_partition") == [10 * 2]


def test_an_offloaded_optimizer_leaves_a_staging_buffer_on_the_card() -> None:
    """Master, gradients and upload buffer are on the host; the staging buffer holds the largest gradient."""
    host = HostSettings(pins=True, pins_masters=False, upload="fp32_on_gpu")
    stream, rank = loaded(offloads_optimizer=True, host=host)
    on_card = {each.block.op for each in stream.records if each.alloc and each.block.host_name is None}
    assert "single_partition_of_fp32_groups" not in on_card
    assert held(stream)["temp_grad_buffer_for_gpu_offload"] == 12 * 2
    assert held(stream)["single_grad_partition"] == 12 * 4
    assert held(stream)["temp_grad_buffer_for_cpu_offload"] == 12 * 2
    rank.step(0)
    assert taken(stream, "updated weights in fp32") == [12 * 4]
