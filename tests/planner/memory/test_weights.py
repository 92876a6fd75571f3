"""Bytes of weights as a checkpoint copies them, by hand for Qwen2.5-7B, and beside what the program loads."""

from __future__ import annotations

import pytest

from planner.domain.term import TermName
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.weights import (
    adapter_bytes,
    quantization_constant_bytes,
    quantized_weight_bytes,
    saved_module_bytes,
    unquantized_weight_bytes,
)
from planner.program.job import Job, job_of
from planner.program.ops.sizes import unit_values
from planner.program.step import step_of

# Width 3,584, keys and values 512 wide, feed-forward 18,944, 28 layers, 152,064 tokens; biases on q, k and v.
LAYERS, TABLE = 28, 152_064 * 3_584
MATRICES = LAYERS * (2 * 3_584 * 3_584 + 2 * 3_584 * 512 + 3 * 3_584 * 18_944)
FLOATS = LAYERS * ((3_584 + 512 + 512) + 2 * 3_584) + 3_584
# In and out features of q, k, v, o, gate, up and down, at rank 8.
ADAPTERS = LAYERS * 8 * (2 * (3_584 + 3_584) + 2 * (3_584 + 512) + 3 * (3_584 + 18_944))


def job(**flags: object) -> Job:
    """Qwen2.5-7B, on one card unless told otherwise."""
    base = {"model": "qwen2.5-7b", "gpu": "a100-80gb", "seq": 1024, "batch": 1, "stack": "hf-trainer@5"}
    return job_of(resolve(from_flags({**base, **flags})), Coefficients())


def standing(subject: Job, term: TermName) -> float:
    """Bytes of a term that are there when the step ends."""
    stream, values = step_of(subject), unit_values(subject)
    slots = (slot for slot in stream.state_slots() if stream.term(slot) == term)
    return sum(stream.unit_bytes[slot] * float(values[stream.units[slot]]) for slot in slots)


@pytest.mark.parametrize(
    ("quantization", "packed", "scales"),
    [
        ({"method": "qlora"}, MATRICES / 2, MATRICES * (1 / 64 + 4 / (64 * 256))),
        ({"method": "qlora", "double_quant": False}, MATRICES / 2, MATRICES / 64 * 4),
        ({"method": "int8"}, MATRICES, LAYERS * 4 * (2 * 3_584 + 2 * 512 + 2 * 18_944 + 3_584)),
    ],
    ids=["nested", "fp32 scales", "int8"],
)
def test_packed_matrices_and_their_scales(
    quantization: dict[str, object], packed: float, scales: float
) -> None:
    """Half a byte or one for each element; a byte or four for 64, or four for each output feature.
    The program has as many.
    """
    subject = job(lora_rank=8, lora_targets="all-linear", **quantization)
    assert quantized_weight_bytes(subject) == packed
    assert quantization_constant_bytes(subject) == pytest.approx(scales)
    assert standing(subject, "quantization_constants") == pytest.approx(scales)
    rest = unquantized_weight_bytes(subject)
    assert standing(subject, "weights") == pytest.approx(packed + float(rest))
    assert adapter_bytes(subject) == 4 * ADAPTERS == standing(subject, "adapters")


def test_what_is_not_packed_is_divided_over_the_processes() -> None:
    """Two bytes of each of 7.6e9 weights; a quarter of them on each of four cards,
    and fp32 adapters likewise.
    """
    total = MATRICES + FLOATS + 2 * TABLE
    flags = {"method": "lora", "lora_rank": 8, "lora_targets": "all-linear", "load_dtype": "bf16"}
    alone, divided = job(**flags), job(**flags, gpus=4, sharding="fsdp")
    assert unquantized_weight_bytes(alone) == 2 * total == standing(alone, "weights")
    assert unquantized_weight_bytes(divided) == 2 * total / 4 == standing(divided, "weights")
    assert adapter_bytes(divided) == ADAPTERS == standing(divided, "adapters")


def test_modules_to_save_are_there_twice() -> None:
    """A trained copy of the head beside the frozen one."""
    assert saved_module_bytes(job(method="lora", load_dtype="bf16", modules_to_save="lm_head")) == 2 * TABLE
    assert saved_module_bytes(job(method="lora")) == 0


@pytest.mark.parametrize("sharding", ["fsdp", "zero3"])
@pytest.mark.parametrize("offload", ["none", "optimizer+params"])
def test_scales_of_divided_matrices_stay_whole_on_the_card(sharding: str, offload: str) -> None:
    """A byte for 64 elements and four for 64 x 256, on every card and with offload too:
    they are no parameters.
    """
    subject = job(method="qlora", gpus=4, sharding=sharding, quant_storage="bf16", offload=offload)
    whole = MATRICES * (1 / 64 + 4 / (64 * 256))
    assert quantization_constant_bytes(subject) == pytest.approx(whole)
    assert standing(subject, "quantization_constants") == pytest.approx(whole)
