"""One rank under FSDP2: a layer with a matrix of 5 rows, and a root with a vector, over two processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("torch")

from measure.trace.record import Place
from measure.trace.sharding.flat_optimizer import as_shards, record_steps
from measure.trace.sharding.fsdp import FsdpRank
from measure.trace.sharding.fsdp_units import ROOT
from measure.trace.sharding.runtime_settings import FsdpSettings
from measure.trace.sharding.shard_records import RankRecords
from tests.measure.trace.sharding.made import FIRST_ID, gradient, held, loading, parameter, taken
from tests.measure.trace.tiny import llama

MATRIX = parameter("weight", 5, 2)
VECTOR = parameter("weight", 4, module="norm", layer=-1, unit=ROOT, stays_whole=True)
LAYER = "layers.0"
# Three of five rows, of which the other process has two and one of padding.
PART = 3 * 2


def rank(**changes: Any) -> tuple[RankRecords, FsdpRank]:
    """A rank before its first forward."""
    plain: dict[str, Any] = {
        "shards": 2, "mixed": True, "quantized": False, "offloads": False, "loads_each_name": True,
        "reduces_last_only": False, "reduces_fp32": False, "widens": True, "replicates": False,
        "reshards_after_forward": True,
    }  # fmt: skip
    stream = RankRecords(FIRST_ID)
    made = FsdpRank(stream, FsdpSettings(**{**plain, **changes}))
    for number, each in enumerate((MATRIX, VECTOR)):
        made.load(each, loading(each, number))
    shards: int = changes.get("shards", 2)
    assert made.shard_groups() == [[(-(-5 // shards), 2), (4 // shards,)]]
    made.set_up([])
    return stream, made


def backward(stream: RankRecords, made: FsdpRank, number: int, micro_step: int = 0) -> None:
    """The layer's backward, whose gradient is in block ``number``."""
    stream.place = Place("backward", micro_step)
    made.at("before_backward", LAYER, "")
    made.gradient(MATRIX, gradient(MATRIX, number), boundary=True)
    made.at("after_backward", LAYER, "")


def test_shards_are_fp32_and_padded() -> None:
    """Each parameter is whole in fp32 while its shard is made."""
    stream, _ = rank()
    assert taken(stream, "parameter before it is sharded") == [10 * 4, 4 * 4]
    assert held(stream) == {"shard": (PART + 2) * 4}


def test_states_have_the_dtype_of_shards() -> None:
    """fp32 ones in mixed precision; of 16-bit weights that train as they are, 16 bits."""
    assert rank()[1].updated_bytes == 4
    assert rank(mixed=False)[1].updated_bytes == MATRIX.element_bytes == 2
    sizes = [
        {record.block.n_bytes for record in step[0] if record.block.role == "optimizer_states"}
        for n_bytes in (4, 2)
        for step in record_steps(as_shards([[(6,)]], n_bytes), llama()[0].recipe, 1)
    ]
    assert [max(each) for each in sizes] == [24, 12]


@pytest.mark.parametrize("reshards", [True, False])
def test_a_layer_is_whole_in_forward_and_beyond_if_it_is_not_resharded(reshards: bool) -> None:
    """The buffer that was received stays until the next unit's copy, or the end of the root's forward."""
    stream, made = rank(reshards_after_forward=reshards)
    stream.place = Place("forward", 0)
    made.at("before_forward", "", "")
    made.at("before_forward", LAYER, "")
    assert taken(stream, "all_gather_input") == [2 * 2, PART * 2]
    assert taken(stream, "all_gather_output") == [2 * 2 * 2, 2 * PART * 2]
    assert held(stream)["all_gather_output"] == 2 * PART * 2, "that of the root is gone"
    made.at("after_forward", LAYER, "")
    made.at("after_forward", "", "")
    root = 2 * 2 * 2
    assert held(stream)["unsharded parameter"] == root + (0 if reshards else 2 * PART * 2)
    assert held(stream)["all_gather_output"] == 0


def test_one_process_alone_casts_and_copies_its_own_parameters() -> None:
    """It receives nothing, in forward and in backward, and keeps no cast."""
    stream, made = rank(shards=1)
    stream.place = Place("forward", 0)
    made.at("before_forward", LAYER, "")
    made.at("after_forward", LAYER, "")
    backward(stream, made, 50)
    copies = [10 * 2] * 2
    assert taken(stream, "cast of the shard") == taken(stream, "unsharded parameter") == copies
    assert not taken(stream, "all_gather_output")
    assert held(stream)["cast of the shard"] == held(stream)["unsharded parameter"] == 0
    assert taken(stream, "reduce_scatter_input") == [10 * 2]


@pytest.mark.parametrize(("fp32", "width"), [(False, 2), (True, 4)])
def test_a_gradient_is_reduced_to_a_part_in_fp32(fp32: bool, width: int) -> None:
    """Padded gradients are sent; what arrives is cast unless it is fp32 already, and goes with the step."""
    stream, made = rank(reduces_fp32=fp32)
    backward(stream, made, 50)
    assert taken(stream, "reduce_scatter_input") == [2 * PART * width]
    assert taken(stream, "reduce_scatter_output") == ([] if fp32 else [PART * 2])
    assert held(stream)["sharded gradient"] == PART * 4
    assert 50 in {each.block.id for each in stream.records if not each.alloc}
    made.end_of_backward(boundary=True)
    assert held(stream)["reduce_scatter_input"] == 0
    made.step(0)
    assert held(stream) == {"shard": (PART + 2) * 4}


def test_without_reduction_gradients_stay_whole_between_micro_steps() -> None:
    """Nothing is sent in the first of two micro-steps; the next gradient is added in place."""
    stream, made = rank(reduces_last_only=True)
    backward(stream, made, 50, micro_step=2)
    assert taken(stream, "reduce_scatter_input") == []
    backward(stream, made, 60, micro_step=3)
    gone = [each.block.id for each in stream.records if not each.alloc]
    assert gone.index(60) < gone.index(50)
    assert taken(stream, "reduce_scatter_input") == [2 * PART * 2]


def test_what_nobody_waits_for_goes_at_the_end_of_backward() -> None:
    """A unit below the first trained one is sent for, and has no backward."""
    stream, made = rank()
    stream.place = Place("forward", 0)
    for module in (LAYER, ""):
        made.at("before_forward", module, "")
        made.at("after_forward", module, "")
    stream.place = Place("backward", 0)
    made.at("before_backward", "", "")
    assert held(stream)["all_gather_output"] == 2 * PART * 2
    made.end_of_backward(boundary=True)
    assert held(stream)["all_gather_output"] == 0


def test_a_shard_for_the_host_is_made_on_the_card_where_the_whole_model_is() -> None:
    """Beside all that is not divided yet; elsewhere parameters have no memory by then."""

    def on_card(*, quantized: bool) -> list[int]:
        stream, _ = rank(offloads=True, quantized=quantized)
        made = [each.block for each in stream.records if each.alloc and each.block.host_name is None]
        return [each.n_bytes for each in made if each.op == "shard"]

    assert on_card(quantized=True) == [PART * 2, 2 * 2]
    assert on_card(quantized=False) == []


def test_offloaded_shards_come_to_be_gathered() -> None:
    """In fp32, each by itself, and cast on the card; no shard or gradient stays there."""
    stream, made = rank(offloads=True)
    assert {each.block.host_name for each in stream.records} == {"offloaded_optimizer"}
    backward(stream, made, 50)
    assert taken(stream, "shard from the host") == [PART * 4]
    on_card = [each for each in stream.records if each.alloc and each.block.host_name is None]
    assert "shard" not in {each.block.op for each in on_card}
    host = [each.block.n_bytes for each in stream.records if each.block.host_name == "offloaded_gradients"]
    assert host == [PART * 4]
