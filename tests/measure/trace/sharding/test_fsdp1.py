"""One rank under FSDP1: a layer with a matrix of 5 rows, and a root with a vector, over two processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("torch")

from measure.trace.record import Place
from measure.trace.sharding.flat_units import NEEDS_BACKWARD
from measure.trace.sharding.fsdp1 import FlatRank
from measure.trace.sharding.fsdp_units import ROOT
from measure.trace.sharding.late_records import LateRecords
from measure.trace.sharding.runtime_settings import FlatSettings
from tests.measure.trace.sharding.made import FIRST_ID, frozen, gradient, held, loading, parameter, taken

LAYER = "layers.0"
MATRIX = parameter("weight", 5, 2, unit=LAYER)
BIAS = parameter("bias", 3, unit=LAYER)
VECTOR = parameter("weight", 4, module="norm", layer=-1, unit=ROOT, stays_whole=True)
# 16-bit parameters begin at multiples of eight: 16 elements of the matrix, and 3, to an even number.
WHOLE, PART = 20, 10


def rank(*parameters: Any, **changes: Any) -> tuple[LateRecords, FlatRank]:
    """A rank before its first forward."""
    plain: dict[str, Any] = {
        "shards": 2, "mixed": True, "quantized": False, "offloads": False, "reduces_last_only": False,
        "replicates": False, "reshards_after_forward": True, "aligned_elements": 8, "prefetches": True,
    }  # fmt: skip
    stream = LateRecords(FIRST_ID)
    made = FlatRank(stream, FlatSettings(**{**plain, **changes}))
    for number, each in enumerate(parameters or (MATRIX, BIAS, VECTOR)):
        made.load(each, loading(each, number))
    made.set_up([])
    return stream, made


def forward(stream: LateRecords, made: FlatRank, micro_step: int = 0) -> None:
    """The root's forward, and the layer's inside of it."""
    stream.place = Place("forward", micro_step)
    made.at("before_forward", "", "")
    made.at("before_forward", LAYER, "")
    made.at("after_forward", LAYER, NEEDS_BACKWARD)
    made.at("after_forward", "", NEEDS_BACKWARD)


def backward(stream: LateRecords, made: FlatRank, micro_step: int = 0) -> None:
    """The layer's backward, and the end of all."""
    stream.place = Place("backward", micro_step)
    made.at("before_backward", "", "")
    made.at("before_backward", LAYER, "")
    for number, each in enumerate((MATRIX, BIAS)):
        made.gradient(each, gradient(each, 100 + 10 * micro_step + number), boundary=True)
    made.at("after_backward", LAYER, "")


def test_the_first_rank_updates_the_first_half_of_each_flat_tensor() -> None:
    """Ten of the matrix's elements fill its part of the layer, and none of the bias is left."""
    _, made = rank()
    assert made.shard_groups() == [[(PART,), (2,)]]
    _, apart = rank(shards=1)
    assert apart.shard_groups() == [[(10,), (3,), (4,)]]


def test_the_narrow_part_goes_when_the_first_forward_has_made_views_of_the_wide_one() -> None:
    """The layer is laid flat before the root; both stay in 16 bits beside fp32 until then."""
    stream, made = rank()
    assert taken(stream, "flat parameter") == [WHOLE * 2, 4 * 2]
    assert held(stream) == {"shard": (PART + 2) * 2, "upcast": (PART + 2) * 4}
    forward(stream, made)
    assert held(stream)["shard"] == 0


@pytest.mark.parametrize("differ", [False, True])
def test_a_frozen_part_is_cast_where_its_16_bits_are_others(*, differ: bool) -> None:
    """Stored in bf16 and computed with in fp16, say."""
    layer = frozen("weight", 5, 2, unit=LAYER)
    stream, made = rank(layer, frozen("weight", 4, module="norm", layer=-1, unit=ROOT), halves_differ=differ)
    forward(stream, made)
    assert taken(stream, "_mp_shard") == ([2 * 2, 5 * 2] if differ else [])


@pytest.mark.parametrize(("reshards", "n_gathers"), [(True, 3), (False, 2)])
def test_the_root_stays_whole_and_sends_for_the_last_layer(reshards: bool, n_gathers: int) -> None:
    """As the root's backward begins; a layer that stayed whole is not sent for."""
    stream, made = rank(reshards_after_forward=reshards)
    forward(stream, made)
    stream.place = Place("backward", 0)
    made.at("before_backward", "", "")
    assert taken(stream, "_full_param_padded") == [4 * 2, WHOLE * 2, WHOLE * 2][:n_gathers]


def test_what_is_given_back_in_forward_waits_for_the_host_and_in_backward_does_not() -> None:
    """The backward of the split runs in the stream of the gathers, and so does the hook behind it."""
    stream, made = rank()
    forward(stream, made)
    assert held(stream)["_full_param_padded"] == (WHOLE + 4) * 2
    made.at("host_waits", "", "")
    assert held(stream)["_full_param_padded"] == 4 * 2
    backward(stream, made)
    assert held(stream)["_full_param_padded"] == 4 * 2


def test_gradients_are_joined_reduced_and_widened_in_streams_of_their_own() -> None:
    """Whole gradients wait until the host has seen that they were joined."""
    stream, made = rank()
    forward(stream, made)
    backward(stream, made)
    streams = {each.block.op: each.block.stream for each in stream.records if each.alloc}
    assert (streams["cat"], streams["new_sharded_grad"], streams["_cast_grad_to_param_dtype"]) == (1, 2, 2)
    assert held(stream)["cat"] == WHOLE * 2
    assert held(stream)["_cast_grad_to_param_dtype"] == PART * 4
    made.end_of_backward(boundary=True)
    assert held(stream)["cat"] == 0
    made.step(0)
    assert held(stream)["_cast_grad_to_param_dtype"] == 0


def test_gradients_that_are_not_sent_stay_whole_and_are_added_to() -> None:
    """The second flat gradient goes at once; then this rank's part is made of the sum."""
    stream, made = rank(reduces_last_only=True)
    for micro_step in range(2):
        forward(stream, made, micro_step)
        backward(stream, made, micro_step)
        made.end_of_backward(boundary=micro_step == 1)
        assert held(stream)["cat"] == (0 if micro_step else WHOLE * 2)
    assert taken(stream, "new_sharded_grad") == [PART * 2]
    assert taken(stream, "_use_unsharded_grad_views") == [PART * 4]


def test_frozen_parameters_beside_trained_ones_get_zeros() -> None:
    """Only where one flat tensor has both."""
    stream, made = rank(frozen("weight", 5, 2, unit=LAYER), BIAS, VECTOR)
    forward(stream, made)
    stream.place = Place("backward", 0)
    made.at("before_backward", LAYER, "")
    made.gradient(BIAS, gradient(BIAS, 100), boundary=True)
    made.at("after_backward", LAYER, "")
    assert taken(stream, "zeros") == [10 * 2]
    assert taken(stream, "cat") == [WHOLE * 2]


def test_a_part_on_the_host_is_sent_for_again_where_all_is_in_place() -> None:
    """The root's backward does so, and receives nothing."""
    stream, made = rank(offloads=True)
    forward(stream, made)
    stream.place = Place("backward", 0)
    made.at("before_backward", "", "")
    assert taken(stream, "shard from the host") == [2 * 4, PART * 4, 2 * 4, PART * 4]
    assert taken(stream, "_full_param_padded") == [4 * 2, WHOLE * 2, WHOLE * 2]


def test_an_adapter_in_a_unit_of_its_own_ends_with_its_gradient() -> None:
    """It is part of no other flat tensor, wherever the layer is."""
    inner = "layers.0.q.lora_A"
    adapter = parameter("weight", 2, 4, module=inner, unit=inner)
    stream, made = rank(frozen("weight", 5, 2, unit=LAYER), adapter, VECTOR)
    assert taken(stream, "flat parameter") == [8 * 2, 10 * 2, 4 * 2], "before that of its layer"
    stream.place = Place("backward", 0)
    made.gradient(adapter, gradient(adapter, 100), boundary=True)
    assert taken(stream, "new_sharded_grad") == [4 * 2]


def test_adapters_follow_what_they_adapt_in_a_flat_tensor_of_both() -> None:
    """So the first rank has those of the first modules."""
    first, second = (frozen("weight", 8, module=f"layers.0.{name}.base", unit=LAYER) for name in "qv")
    adapter = parameter("weight", 8, module="layers.0.q.lora_A", unit=LAYER)
    _, made = rank(first, second, adapter, VECTOR, shards=2)
    assert made.shard_groups()[0] == [(4,), (2,)]
