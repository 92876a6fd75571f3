"""One rank under ZeRO-3: a matrix of 20 elements and a vector of 3, over two processes."""

from __future__ import annotations

from typing import Any

import pytest

from measure.trace.host_records import HOST_STREAMS
from measure.trace.sharding.runtime_settings import HostSettings
from measure.trace.sharding.shard_records import GATHER_STREAM, MAIN_STREAM, RankRecords, TracedPurpose
from measure.trace.sharding.zero3 import TracedZero3
from tests.measure.trace.sharding.made import FIRST_ID, gradient, held, loading, parameter, taken, zero

MATRIX, VECTOR = parameter("weight", 10, 2), parameter("bias", 3)
# Elements of their parts, the vector's with one of padding.
PARTS = 10 + 2


def loaded(**changes: Any) -> tuple[RankRecords, TracedZero3]:
    """A rank whose parameters are divided."""
    stream = RankRecords(FIRST_ID)
    rank = TracedZero3(stream, zero(stage=3, overlaps=True, **changes))
    for number, each in enumerate((MATRIX, VECTOR)):
        rank.load(each, loading(each, number))
    return stream, rank


def ready(**changes: Any) -> tuple[RankRecords, TracedZero3]:
    """The same before its first forward."""
    stream, rank = loaded(**changes)
    groups = rank.shard_groups()
    rank.set_up([[[] for _ in groups]] * 2)
    return stream, rank


def test_each_parameter_is_whole_for_a_moment_and_then_a_padded_part() -> None:
    """40 bytes become 20, and 6 become 4: three elements are two for each process."""
    stream, _ = loaded()
    assert taken(stream, "parameter before it is divided") == [20 * 2, 3 * 2]
    assert taken(stream, "ds_tensor") == [10 * 2, 2 * 2]
    assert held(stream) == {"ds_tensor": PARTS * 2}


def test_a_k_bit_model_is_whole_until_all_of_it_is_there() -> None:
    """It is cast where it was stored wider, and divided only then."""
    stream, rank = loaded(quantized=True)
    assert held(stream) == {"parameter before it is divided": 23 * 2}
    rank.shard_groups()
    rank.set_up([[[]], [[]]])
    assert taken(stream, "ds_tensor") == [10 * 2, 2 * 2]


@pytest.mark.parametrize(("limit", "groups"), [(10**9, [[(12,)]]), (12, [[(12,)]]), (10, [[(10,)], [(2,)]])])
def test_sub_groups_end_when_they_have_enough(limit: int, groups: list[Any]) -> None:
    """A group of the optimizer is cut behind the parameter that fills it."""
    assert loaded(sub_group_elements=limit)[1].shard_groups() == groups


def test_masters_bucket_and_gradients_come_and_stay() -> None:
    """One buffer of trained parts in 16-bit, fp32 masters, one bucket, one buffer for gradients."""
    stream, _ = ready()
    assert held(stream) == {
        "lp_param_buffer": PARTS * 2,
        "fp32_partitioned_groups_flat": PARTS * 4,
        "ipg_bucket.buffer": 16 * 2,
        "grad_partitions_flat_buffer": PARTS * 2,
    }
    # Each is whole, padding included, while it gets its hook.
    assert taken(stream, "_allgather_params_sequential") == [20 * 2, 4 * 2]


def test_gradients_of_a_full_bucket_are_reduced_together() -> None:
    """The vector's waits in the bucket; the matrix's is larger than the bucket, and goes after its turn."""
    stream, rank = ready()
    rank.gradient(VECTOR, gradient(VECTOR, 50), boundary=True)
    assert stream.records[-1].waits, "the stream that reduces still uses it"
    rank.at("host_waits", "", "")
    assert not stream.records[-1].waits, "what the card was given is over"
    assert taken(stream, "reduce_scatter_coalesced") == []
    rank.gradient(MATRIX, gradient(MATRIX, 51), boundary=True)
    # Three elements of the vector are padded to two for each of two processes.
    assert taken(stream, "reduce_scatter_coalesced") == [4 * 2]
    rank.end_of_backward(boundary=True)
    assert taken(stream, "reduce_scatter_coalesced") == [4 * 2], "one whole gradient is sent as it is"


def test_a_step_takes_norms_flat_gradients_and_fp32_copies() -> None:
    """In the end the small parameter is whole again, and the matrix is not."""
    stream, rank = ready(checks_overflow=True)
    rank.step(0)
    assert taken(stream, "norm in fp64") == [10 * 8, 2 * 8]
    assert taken(stream, "flatten(averaged_gradients)") == [PARTS * 2]
    assert taken(stream, "flat gradients in fp32") == [PARTS * 4]
    # Absolute values in fp16, and one byte for each answer.
    assert taken(stream, "isinf, isnan(grad_partitions_flat_buffer)") == [PARTS * 2, PARTS, PARTS]
    assert held(stream)["gathered parameter"] == 4 * 2


def test_offload_keeps_small_parameters_on_the_card() -> None:
    """Masters, gradients and the matrix's part are on the host."""
    host = HostSettings(pins=False, pins_masters=False, upload="buffer_on_host")
    stream, _ = ready(offloads_optimizer=True, offloads_params=True, host=host)
    on_card = [
        (each.block.op, each.block.n_bytes)
        for each in stream.records
        if each.alloc and each.block.host_name is None and each.block.op == "ds_tensor"
    ]
    assert on_card == [("ds_tensor", 2 * 2)]
    assert held(stream)["subgroup_gradient_buffer"] == PARTS * 4
    assert held(stream)["fp32_partitioned_groups_flat"] == PARTS * 4


def test_the_host_waits_at_the_end_of_backward_and_for_the_norm() -> None:
    """What another stream uses has come back by then; the blocks of a pass are freed once more."""
    stream, rank = ready()
    for end in (lambda: rank.end_of_backward(boundary=True), lambda: rank.step(0)):
        late = stream.take(10**7, TracedPurpose("of another stream", "gathered_parameters", GATHER_STREAM))
        stream.free_late(late, 3)
        end()
        frees = [record.waits for record in stream.records if record.block is late and not record.alloc]
        assert frees == [True, False]


def test_without_overlap_all_on_the_card_is_in_one_stream() -> None:
    """Host memory keeps its own pools."""
    stream = RankRecords(FIRST_ID, one_stream=True)
    gathered = stream.take(10**7, TracedPurpose("gathered", "gathered_parameters", GATHER_STREAM))
    pinned = stream.pin(10**7, "gradient")
    assert (gathered.stream, pinned.stream) == (MAIN_STREAM, HOST_STREAMS["pinned"])
    stream.free_late(gathered, 3)
    assert [each.waits for each in stream.records if not each.alloc] == [False]


def test_a_model_is_filled_after_it_is_divided_and_its_head_tied() -> None:
    """Only the Trainer's models: each parameter is whole once more, and the part of a head that is tied
    later goes when garbage is collected.
    """
    stream, _ = ready(begins_empty=True, untied_elements=20)
    assert taken(stream, "_allgather_params_sequential") == [20 * 2, 4 * 2] * 2
    assert taken(stream, "ds_tensor") == [10 * 2, 2 * 2, 10 * 2]
    assert "ds_tensor" not in held(stream)
