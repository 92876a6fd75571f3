"""DDP's buckets, filled by hand."""

from __future__ import annotations

import pytest

from planner.catalog.stacks import load_stack, with_switches
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.engines.ddp import bucket_sizes, copy_sizes
from planner.program.job import job_of
from planner.program.request_stream import RequestStream
from planner.program.step import step_of
from planner.units import MIB
from tests.jobs import job_by, resolved, typed


def test_a_bucket_ends_with_the_gradient_that_fills_it() -> None:
    """The first holds 1 MiB, the others 25 MiB; what remains has a bucket too."""
    assert bucket_sizes([MIB / 2, MIB / 2, 20 * MIB, 30 * MIB, 3 * MIB]) == [MIB, 50 * MIB, 3 * MIB]
    assert bucket_sizes([]) == []


def test_a_copy_ends_with_the_tensor_that_fills_it() -> None:
    """250 MiB of one dtype; a tensor that is alone is sent as it is."""
    tensors = [("bf16", 300 * MIB), ("bf16", 200 * MIB), ("fp32", MIB), ("bf16", 60 * MIB), ("fp32", 2 * MIB)]
    assert copy_sizes(tensors) == [0, 260 * MIB, 3 * MIB]
    assert copy_sizes([]) == []


FLAGS = typed(
    "--model qwen2.5-0.5b --method full --sharding ddp --gpus 2 --gpu a100-80gb --seq 512 --batch 1"
)


def buckets_of(stream: RequestStream) -> list[int]:
    """Slots of DDP's buckets."""
    return [slot for slot in range(len(stream.units)) if stream.place(slot)[2] == "bucket"]


def test_one_bucket_holds_the_gradients_of_the_first_step_where_none_can_be_unused() -> None:
    """With checkpointing, the Trainer looks for no unused parameters: 988 MB in one piece, which go as the
    second step begins; with adapters, or without checkpointing, it looks for them.
    """
    flags = {**FLAGS, "gradient_checkpointing": True}
    stream = step_of(job_by(flags))
    first, *others = buckets_of(stream)
    assert stream.unit_bytes[first] == sum(stream.unit_bytes[slot] for slot in others) == 2 * 494_032_768
    place = stream.events.index(~first)
    assert place == next(begin for begin, phase in stream.phases if phase == "forward_2")
    assert list(stream.events[place + 1 : place + 1 + len(others)]) == others
    adapted = step_of(job_by({**flags, "method": "lora"}))
    assert not {~slot for slot in buckets_of(adapted)} & set(adapted.events)


def test_adapters_are_copied_with_the_modules_that_they_are_in() -> None:
    """So their copy is made beside the first one of the layers' matrices, and not with the last.

    ms-swift 4.6 on fake tensors, LoRA of Qwen3 1.7B on four cards: 5 % less was reserved otherwise.
    """
    flags = {**FLAGS, "model": "qwen3-1.7b", "method": "lora", "stack": "swift", "load_dtype": "bf16"}
    stream = step_of(job_by(flags))
    copies = [slot for slot in stream.events if slot >= 0 and stream.place(slot)[2] == "broadcast"]
    assert min(copies, key=lambda slot: stream.unit_bytes[slot]) == copies[1]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("never", (False, False, False, False)),
        ("unless_checkpointed", (True, False, True, True)),
        ("full_unless_checkpointed", (True, False, False, False)),
        ("always", (True, True, True, True)),
    ],
)
def test_where_unused_parameters_are_looked_for(said: str, expected: tuple[bool, ...]) -> None:
    """Whole models without and with checkpointing, then adapters without and with it."""
    stack = with_switches(load_stack("trl"), {"ddp_finds_unused": said}, "test")
    assert expected == tuple(
        stack.finds_unused(has_adapter=adapter, is_checkpointed=checkpointed)
        for adapter in (False, True)
        for checkpointed in (False, True)
    )


def test_buckets_hold_every_gradient_once_and_stay() -> None:
    """Qwen2.5-0.5B has 494,032,768 parameters of two bytes;
    the table of a tied model closes the last bucket.
    """
    scenario = resolved({**FLAGS, "gradient_checkpointing": False})
    stream = step_of(job_of(scenario, Coefficients()))
    buckets = buckets_of(stream)
    assert sum(stream.unit_bytes[slot] for slot in buckets) == 2 * 494_032_768
    assert stream.unit_bytes[buckets[-1]] > 2 * 151_936 * 896
    assert not {~slot for slot in buckets} & set(stream.events)
    copies = [slot for slot in range(len(stream.units)) if stream.place(slot)[2] == "broadcast"]
    tables = 2 * 151_936 * 896
    assert sum(stream.unit_bytes[slot] for slot in copies) == 2 * 494_032_768 - tables
    assert {~slot for slot in copies} <= set(stream.events)


def test_a_tower_without_images_has_room_in_the_buckets() -> None:
    """Its parameters require gradients that never come: SmolVLM has 256,484,928 of two bytes."""
    flags = {**FLAGS, "model": "smolvlm-256m", "gradient_checkpointing": False}
    stream = step_of(job_by(flags))
    assert sum(stream.unit_bytes[slot] for slot in buckets_of(stream)) == 2 * 256_484_928
