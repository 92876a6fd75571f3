"""Sizes of whole parameters and of shards, and the events of one module among those of a part."""

from __future__ import annotations

from array import array

import pytest

from planner.program.engines.groups import Sizes, around, part_of
from planner.program.ops.tensors import Unit
from planner.program.parameters import Weight, adapter_weights, model_weights
from planner.program.request_stream import RequestStream
from planner.program.step import step_of
from tests.planner.program.engines.fsdp.test_fsdp import job


def test_a_module_is_found_among_the_events_of_a_part() -> None:
    """Frees after its last allocation are its own."""
    stream = RequestStream()
    slots = [
        stream.allocate(Unit.ONE, 1, "weights", ("head", module, "op")) for module in ("norm", "lm_head", "")
    ]
    events = array("q", [slots[0], slots[1], ~slots[0], slots[2]])
    assert [each.tolist() for each in around(stream, events, "lm_head")] == [
        [slots[0]],
        [slots[1], ~slots[0]],
        [slots[2]],
    ]
    assert [each.tolist() for each in around(stream, events, "embed_tokens")] == [[], [], events.tolist()]


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"method": "lora", "gpus": 6},
        {"method": "qlora", "quant_storage": "bf16"},
        {"method": "int8", "stack": "axolotl"},
        {"model": "qwen3-30b-a3b", "stack": "torchtitan@2025", "nodes": 32, "expert_parallel": 8},
    ],
)
def test_bytes_of_a_shard_are_those_of_the_weight_that_it_is(flags: dict[str, object]) -> None:
    """Also where the rows of a matrix do not divide, or experts are divided along theirs."""
    subject = job(**flags)
    sizes, weights = Sizes(subject), [*model_weights(subject), *adapter_weights(subject)]
    assert [sizes.shard_bytes(each) for each in weights] == [sizes.shard(each).unit_bytes for each in weights]
    assert sizes.shard_bytes(weights[0]) < weights[0].unit_bytes


@pytest.mark.parametrize(
    "flags",
    [
        {"model": "mixtral-8x7b", "expert_parallel": 8},
        {"model": "mixtral-8x7b", "nodes": 2, "expert_parallel": 8, "gradient_checkpointing": True},
        {"model": "qwen3-30b-a3b", "stack": "torchtitan@2025", "nodes": 16, "expert_parallel": 128},
    ],
)
def test_one_expert_on_each_gpu_is_a_tensor_of_experts_all_the_same(flags: dict[str, object]) -> None:
    """So it is in a unit of its own, whose gradients are found in backward."""
    subject = job(**flags)
    sizes = Sizes(subject)
    experts = [each for each in model_weights(subject) if sizes.is_of_experts(each)]
    assert experts
    assert {each.shape[0] for each in experts} == {(Unit.ONE, 1)}
    assert step_of(subject).events


def matrix(name: str, rows: int, columns: int, *, trained: bool = True) -> Weight:
    """A 16-bit matrix."""
    return Weight(name, "matrix", ((Unit.ONE, rows), (Unit.ONE, columns)), "bf16", trained=trained)


def test_rows_that_do_not_divide_are_padded() -> None:
    """Twelve rows of ten over eight cards: two rows each, of which there would be sixteen.

    In mixed precision 16-bit layers see them, and shards that are trained are fp32.
    """
    sizes, weight = Sizes(job()), matrix("layer 0 q_proj", 12, 10)
    assert (sizes.n, sizes.shard_elements(weight)) == (8, 20)
    assert sizes.stored_bytes(weight) == sizes.shard_bytes(weight) == 20 * 4
    assert sizes.seen_bytes(weight) == 8 * 20 * 2
    assert sizes.shard_bytes(matrix("layer 0 q_proj", 16, 10, trained=False)) == 20 * 2
    assert sizes.shard_elements(matrix("layer 0 q_proj", 1, 10)) == 10


def test_fsdp1_divides_a_flat_tensor_wherever_it_falls() -> None:
    """Twelve rows of ten over eight cards are fifteen elements each: only the flat tensor is padded."""
    sizes, weight = Sizes(job(sharding="fsdp1")), matrix("layer 0 q_proj", 12, 10)
    assert (sizes.n, sizes.shard_elements(weight)) == (8, 15)
    assert sizes.seen_bytes(weight) == 12 * 10 * 2


def test_4_bit_matrices_are_divided_where_their_bytes_are_stored_as_floats() -> None:
    """Two elements in a byte; everything else is divided in any case."""
    weight = matrix("layer 0 q_proj", 16, 10, trained=False)
    weight.packed = True
    whole, divided = (Sizes(job(method="qlora", **more)) for more in ({}, {"quant_storage": "bf16"}))
    assert [each.divides(weight) for each in (whole, divided)] == [False, True]
    assert whole.divides(matrix("norm", 16, 1))
    assert divided.shard_elements(weight) == 10


def test_a_parameter_belongs_to_its_layer() -> None:
    """Of the language model or the tower; what lies around the layers belongs to none."""
    names = ("layer 3 q_proj", "tower layer 12 qkv weight", "head", "norm final")
    assert [part_of(matrix(name, 1, 1)) for name in names] == ["layer 3", "vision layer 12", "", ""]
