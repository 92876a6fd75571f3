"""What FSDP gathers, reduces and keeps,
counted by hand for Llama 2 7B over eight cards in bf16 over fp32 shards.
"""

from __future__ import annotations

from functools import partial

import pytest

from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.request_stream import RequestStream
from planner.program.step import step_of
from tests.jobs import job_by

N, LAYERS, WIDTH = 8, 32, 4_096
TABLE = 32_000 * WIDTH
LAYER = 4 * WIDTH**2 + 3 * WIDTH * 11_008 + 2 * WIDTH
TAIL = TABLE + WIDTH
# A and B of rank 16 at all seven matrices of a layer.
ADAPTERS = 16 * (8 * WIDTH + 3 * (WIDTH + 11_008))

Row = tuple[str, int, int]


job = partial(
    job_by,
    (
        f"--model llama-2-7b --method full --gpu a100-80gb --gpus {N} --sharding fsdp --seq 512 --batch 1 "
        "--stack hf-trainer@5"
    ),
)
"""One micro-batch of 512 tokens."""


def rows(subject: Job, phase: str) -> list[Row]:
    """What FSDP itself allocates in a phase: operator, bytes, CUDA stream."""
    stream = step_of(subject)
    return [found for found, here in _rows(stream, subject) if here == phase]


def _rows(stream: RequestStream, subject: Job) -> list[tuple[Row, str]]:
    values, begins, phase, found = unit_values(subject), dict(stream.phases), "", []
    for index, event in enumerate(stream.events):
        phase = begins.get(index, phase)
        if event >= 0 and stream.place(event)[0] == "fsdp":
            n_bytes = round(float(stream.unit_bytes[event] * values[stream.units[event]]))
            found.append(((stream.place(event)[2], n_bytes, stream.streams[event]), phase))
    return found


def left(subject: Job) -> dict[str, int]:
    """How many allocations of FSDP itself are there after the last backward pass, by operator."""
    stream = step_of(subject)
    events = stream.events[: max(begin for begin, phase in stream.phases if phase == "optimizer_step")]
    alive = {event for event in events if event >= 0} - {~event for event in events if event < 0}
    ops = [stream.place(slot)[2] for slot in alive if stream.place(slot)[0] == "fsdp"]
    return {op: ops.count(op) for op in ops}


@pytest.mark.parametrize(("sharding", "n_layers"), [("fsdp", LAYERS - 1), ("fsdp-grad-op", 0)])
def test_a_backward_gathers_again_what_was_given_back(sharding: str, n_layers: int) -> None:
    """The last layer came in the loss; the table, which nothing reads again, comes too.
    With grad-op all of them stay.
    """
    found = [
        n_bytes for op, n_bytes, _ in rows(job(sharding=sharding), "backward_2") if op == "all_gather_output"
    ]
    assert found == n_layers * [2 * LAYER] + [2 * TABLE] * (n_layers > 0)


@pytest.mark.parametrize(("checkpointing", "copies"), [(True, 1), (False, 0)])
def test_a_frozen_table_comes_back_where_its_output_has_a_gradient(checkpointing: bool, copies: int) -> None:
    """Checkpointing asks for one.  Without it the first layer sends for the table all the same,
    and nobody copies it.
    """
    found = rows(job(method="lora", gradient_checkpointing=checkpointing), "backward_2")
    assert ("all_gather_output", 2 * TABLE, 1) in found
    assert found.count(("unsharded parameter", 2 * TABLE, 0)) == copies


def test_layers_below_the_first_trained_one_have_no_backward() -> None:
    """Their outputs have no gradient to hook into.  The first trained layer sends for the one below all the
    same, and nobody copies that; the last one came in the loss.
    """
    subject = job(train_layers="last:4", gradient_checkpointing=False)
    found = [op for op, *_ in rows(subject, "backward_2")]
    assert found.count("all_gather_output") == 4
    assert "all_gather_output" not in left(subject)


def test_nothing_but_gradients_of_shards_is_left() -> None:
    """One for each layer, the table, and the norm with the head."""
    assert left(job()) == {"sharded gradient": LAYERS + 2}
    assert left(job(method="lora", gradient_checkpointing=False)) == {"sharded gradient": LAYERS}


def test_an_offloaded_shard_comes_up_by_itself_and_its_gradient_leaves_nothing() -> None:
    """In fp32, and is cast there."""
    subject = job(offload="optimizer+params")
    assert rows(subject, "forward_2")[:3] == [
        ("shard from the host", 4 * TABLE // N, 1),
        ("all_gather_input", 2 * TABLE // N, 1),
        ("all_gather_output", 2 * TABLE, 1),
    ]
    assert left(subject) == {}


@pytest.mark.parametrize("storage", ["bf16", None])
def test_packed_matrices_travel_packed_or_not_at_all(storage: str | None) -> None:
    """Half a byte for each element where 4-bit bytes are stored as floats;
    stored as bytes they are whole on every card.
    """
    flags = {"method": "qlora", "lora_rank": 16, "lora_targets": "all-linear"} | (
        {"quant_storage": storage} if storage else {}
    )
    received = {n_bytes for op, n_bytes, _ in rows(job(**flags), "forward_2") if op == "all_gather_output"}
    matrices, floats = LAYER - 2 * WIDTH, 2 * (2 * WIDTH + ADAPTERS)
    assert (matrices // 2 + floats if storage else floats) in received


def test_int8_matrices_travel_a_byte_for_each_element() -> None:
    """Their scales stay whole on every card."""
    subject = job(method="int8", stack="axolotl", lora_rank=16, lora_targets="all-linear")
    received = {n_bytes for op, n_bytes, _ in rows(subject, "forward_2") if op == "all_gather_output"}
    assert LAYER - 2 * WIDTH + 2 * (2 * WIDTH + ADAPTERS) in received


def test_a_model_that_is_whole_before_it_is_divided() -> None:
    """Every parameter is on the card when the first shard is made; otherwise one at a time, or none."""
    most = {}
    for switch in ("one_by_one", "whole", "shards"):
        subject = job(switches=f"fsdp_loads={switch}")
        stream, values = step_of(subject), unit_values(subject)
        end = next(begin for begin, phase in stream.phases if phase == "forward")
        alive = peak = 0
        for event in stream.events[:end]:
            slot = event if event >= 0 else ~event
            n_bytes = round(float(stream.unit_bytes[slot] * values[stream.units[slot]]))
            alive += n_bytes if event >= 0 else -n_bytes
            peak = max(peak, alive)
        most[switch] = peak
    whole = 2 * (2 * TABLE + WIDTH + LAYERS * LAYER)
    assert most["shards"] < most["one_by_one"] < whole <= most["whole"]


def test_adapters_of_matrices_beside_the_layers_are_reduced_with_the_root() -> None:
    """OPT-350M has one matrix before its layers and one behind: every adapter is reduced, none is lost."""
    subject = job(model="opt-350m", method="lora", lora_targets="all-linear", lora_rank=8)
    reduced = [
        n_bytes
        for phase in ("forward", "backward", "loss")
        for op, n_bytes, _ in rows(subject, phase)
        if op == "reduce_scatter_input"
    ]
    width, inner, embedded = 1_024, 4_096, 512
    adapters = 8 * (24 * (8 * width + 2 * (width + inner)) + 2 * (width + embedded))
    assert sum(reduced) == 2 * adapters


def test_mixtures_of_experts_as_units_leave_attention_to_the_root() -> None:
    """FSDP1 gathers the root once and each mixture for forward, for the second run and for its backward."""
    flags = {"model": "mixtral-8x7b", "method": "lora", "lora_targets": ["q_proj"], "sharding": "fsdp1"}
    checkpoints = {"gradient_checkpointing": True, "checkpoint_reentrant": True}
    units = {"switches": ["fsdp_units=feed_forward"], **checkpoints}
    forward, backward = (
        [n_bytes for op, n_bytes, _ in rows(job(**flags, **units), phase) if op == "_full_param_padded"]
        for phase in ("forward_2", "backward_2")
    )
    hidden, width, experts = 4_096, 14_336, 8
    mixture = 2 * experts * hidden * (3 * width + 1)
    attention, around = 2 * hidden * (2 * hidden + 2 * 1_024 + 2), 2 * (2 * 32_000 + 1) * hidden
    assert forward.count(mixture) == LAYERS
    assert forward[0] == LAYERS * attention + around
    assert backward.count(mixture) == 2 * LAYERS
    assert forward[0] not in backward


@pytest.mark.parametrize("sharding", ["fsdp", "fsdp1"])
def test_a_value_head_is_reduced_where_nothing_else_of_its_group_is_trained(sharding: str) -> None:
    """Its weight is too small to be counted, so that no weight of the group says a dtype."""
    made = job(sharding=sharding, method="lora", task="reward", stack="llama-factory", seq=64)
    op = {"fsdp": "sharded gradient", "fsdp1": "_cast_grad_to_param_dtype"}[sharding]
    found = rows(made, "loss") + rows(made, "backward")
    assert (op, WIDTH * 4 // N) in [(name, n_bytes) for name, n_bytes, _ in found]


def test_a_shard_is_made_beside_its_whole_and_a_tied_table_comes_twice() -> None:
    """Qwen2.5-0.5B over two cards: 544,538,624 bytes of the table in fp32, half of them beside it, and then
    the whole goes.  The head's name brings the same once more; that shard goes when all are loaded.  Nothing
    of this under FSDP1, which has no state dict to load.
    """
    table = 4 * 151_936 * 896
    flags = {"model": "qwen2.5-0.5b", "gpus": 2, "load_dtype": "fp32", "precision": "bf16-mixed"}
    subject = job(**flags)
    stream = step_of(subject)
    loading = stream.events[: next(begin for begin, phase in stream.phases if phase == "forward")]
    whole, shard = loading[:2]
    assert [stream.unit_bytes[slot] for slot in (whole, shard)] == [table, table / 2]
    assert loading[2] == ~whole
    again = next(slot for slot in loading if slot >= 0 and stream.place(slot)[1] == "lm_head")
    assert stream.unit_bytes[again] == table / 2
    assert loading[-1] == ~again
    old = step_of(job(**flags, sharding="fsdp1"))
    assert not [slot for slot in range(len(old.units)) if old.place(slot)[:2] == ("load", "lm_head")]
