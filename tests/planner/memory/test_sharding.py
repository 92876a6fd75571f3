"""What FSDP2 and ZeRO-3 do with blocks, 4-bit bases and the adapters over them, counted by hand."""

from __future__ import annotations

import pytest

from planner.domain.coefficients import Coefficients
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.parts import parts_of
from planner.memory.sharding import block_unit_bytes, gathered_parameter_bytes, received_buffer_bytes
from planner.memory.terms import tensor_terms
from planner.memory.weights import quantization_constant_bytes
from planner.program.job import Job, job_of

# Qwen2.5-7B: width 3,584, keys and values 512 wide, feed-forward 18,944, 28 layers, 152,064 tokens; biases on q, k and v.
MATRICES = 2 * 3_584 * 3_584 + 2 * 3_584 * 512 + 3 * 3_584 * 18_944
FLOATS = (3_584 + 512 + 512) + 2 * 3_584
HEAD = 152_064 * 3_584
# In and out features of q, k, v, o, gate, up and down, at rank 8.
ADAPTERS = 8 * (2 * (3_584 + 3_584) + 2 * (3_584 + 512) + 3 * (3_584 + 18_944))


def job(**flags: object) -> Job:
    """Qwen2.5-7B over four cards."""
    base = {"model": "qwen2.5-7b", "gpu": "a100-80gb", "gpus": 4, "seq": 1024, "batch": 1, "stack": "hf-trainer@5"}
    return job_of(resolve(from_flags({**base, **flags})), Coefficients())


def kbit(sharding: str, **flags: object) -> Job:
    """A QLoRA of rank 8 of every matrix."""
    return job(method="qlora", sharding=sharding, lora_rank=8, lora_targets="all-linear", **flags)


def test_fsdp2_has_two_blocks_while_they_compute_and_the_head_alone_in_the_loss() -> None:
    """The block before is divided again before the head comes; the buffer that the head came in stays until the forward ends."""
    subject = job(method="full", sharding="fsdp")
    gathered = gathered_parameter_bytes(subject)
    assert gathered.first == gathered.passes == 2 * 2 * (MATRICES + FLOATS)
    assert gathered.first_loss == gathered.loss == 2 * HEAD
    assert received_buffer_bytes(subject) == 2 * HEAD


def test_a_tied_table_stays_and_the_last_block_is_received_after_it() -> None:
    """Qwen2.5-1.5B's table of 151,936 x 1,536 is whole from the first layer on, so a block's buffer lies beside the logits."""
    subject = job(model="qwen2.5-1.5b", method="full", sharding="fsdp")
    gathered, block = gathered_parameter_bytes(subject), block_unit_bytes(subject)
    assert gathered.passes == 2 * block + 2 * 151_936 * 1_536
    assert gathered.loss == 2 * 151_936 * 1_536
    assert received_buffer_bytes(subject) == block


def test_packed_matrices_travel_packed_or_not_at_all() -> None:
    """Half a byte for each element where 4-bit bytes are stored as floats; stored as bytes they are whole on every card."""
    rest = 2 * FLOATS + 2 * ADAPTERS
    assert block_unit_bytes(kbit("fsdp", quant_storage="bf16")) == pytest.approx(MATRICES / 2 + rest)
    assert block_unit_bytes(kbit("fsdp")) == pytest.approx(rest)


@pytest.mark.parametrize("sharding", ["fsdp", "zero3"])
@pytest.mark.parametrize("offload", ["none", "optimizer+params"])
def test_scales_of_divided_matrices_stay_whole_on_the_card(sharding: str, offload: str) -> None:
    """A byte for 64 elements and four for 64 x 256, on every card and with offload too: they are no parameters."""
    subject = kbit(sharding, quant_storage="bf16", offload=offload)
    whole = 28 * MATRICES * (1 / 64 + 4 / (64 * 256))
    assert quantization_constant_bytes(subject) == pytest.approx(whole)
    (term,) = (each for each in tensor_terms(subject, parts_of(subject)) if each.name == "quantization_constants")
    assert term.n_bytes == pytest.approx(whole)


def test_zero3_casts_adapters_over_a_kbit_base_and_no_others() -> None:
    """Transformers loads a k-bit model without zero.Init, so that DeepSpeed casts it; PEFT's fp32 adapters stay over others."""
    assert kbit("zero3", quant_storage="bf16").regime.adapter == 2
    assert job(method="lora", sharding="zero3").regime.adapter == 4
