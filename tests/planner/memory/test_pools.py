"""What ZeRO-3 holds whole and what its own streams keep, counted by hand."""

from __future__ import annotations

import pytest

from planner.domain.coefficients import Coefficients
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.cache import flattened_leftover_bytes
from planner.memory.optimizer import initial_block_bytes
from planner.memory.pools import fsdp_gather_pool_bytes, gather_pool_bytes, gradient_pool_bytes, reduction_stream_bytes
from planner.memory.sharding import gathered_parameter_bytes, loaded_parameter_bytes
from planner.prediction import estimate
from planner.program.job import Job, job_of

# The head of Qwen2.5-72B: 152,064 tokens x 8,192 features, more than the 1e9 parameters that ZeRO-3 holds at a time.
HEAD = 152_064 * 8_192
FLAGS = {"model": "qwen2.5-72b", "method": "lora", "gpu": "h200-sxm:4", "seq": 256, "batch": 1, "sharding": "zero3"}


def job(**flags: object) -> Job:
    """A LoRA of Qwen2.5-72B on four cards."""
    return job_of(resolve(from_flags({**FLAGS, **flags})), Coefficients())


def gather_pool(subject: Job) -> object:
    """Bytes of the pool of the gather stream."""
    return gather_pool_bytes(subject, gathered_parameter_bytes(subject))


def test_a_head_above_the_live_limit_is_there_twice_before_the_logits() -> None:
    """With adapters it comes in one buffer with them and is copied out of it; in the first pass and in the loss it is alone."""
    subject = job(lora_rank=64)
    gathered = gathered_parameter_bytes(subject)
    assert gathered.first == 2 * HEAD
    assert gathered.passes == 2 * 2 * HEAD
    assert gathered.loss == pytest.approx(2 * (HEAD + 0.9 * 8_192**2))
    assert loaded_parameter_bytes(subject) == 2 * HEAD


def test_prefetch_goes_one_parameter_beyond_the_live_limit() -> None:
    """A full fine-tune of 7B: 1e9 parameters and then the head of 152,064 x 3,584, which the limit does not stop."""
    gathered = gathered_parameter_bytes(job(model="qwen2.5-7b", method="full"))
    assert gathered.passes == 2 * (1e9 + 152_064 * 3_584)
    assert gather_pool(job(model="qwen2.5-7b", method="full")) == gathered.passes


def test_one_process_gathers_only_what_is_offloaded() -> None:
    """Alone, a process has every parameter where it is; an offloaded one has to come to the GPU."""
    alone = job(model="qwen2.5-7b", method="full", gpu="h200-sxm:1")
    assert gathered_parameter_bytes(alone).passes == 0
    offloaded = job(model="qwen2.5-7b", method="full", gpu="h200-sxm:1", offload="optimizer+params")
    assert gathered_parameter_bytes(offloaded).passes > 2e9


def test_the_reduction_pool_holds_a_bucket_or_the_norm_of_an_offloaded_gradient() -> None:
    """A gradient above the bucket is sent from where it is; offloaded, its part is there in 16 bits and, up to 2.5e8, in fp64."""
    bucket = 3_584**2 * 2
    assert reduction_stream_bytes(job(model="qwen2.5-7b", method="full")) == bucket
    offloaded = job(model="qwen2.5-7b", method="full", gpu="h200-sxm:2", offload="optimizer+params")
    part = 152_064 * 3_584 / 2
    assert reduction_stream_bytes(offloaded) == bucket + 2 * part + 8 * 250_000_000


def test_the_step_flattens_gradients_before_it_widens_them() -> None:
    """Stage 3 holds the 16-bit gradients of one sub-group, at most 1e9, in one tensor beside their fp32 copy: 6 bytes each."""
    prediction = estimate(resolve(from_flags({**FLAGS, "model": "qwen2.5-7b", "method": "full", "gpu": "h200-sxm:2"})))
    (term,) = (term for term in prediction.memory.terms if term.label == "optimizer temporaries")
    assert term.n_bytes == 6 * 1_000_000_000


def test_gradients_that_overlap_with_backward_have_a_pool_of_their_own() -> None:
    """FSDP2 keeps its part of the fp32 gradients there, ZeRO-2 its 16-bit part, twice while it accumulates; offloaded ones go."""
    flags = {"model": "qwen2.5-7b", "method": "full", "gpu": "h200-sxm:8"}
    fsdp, zero2 = job(**flags, sharding="fsdp"), job(**flags, sharding="zero2")
    assert gradient_pool_bytes(fsdp) == 4 * fsdp.counts.total / 8
    assert gradient_pool_bytes(zero2) == 2 * zero2.counts.total / 8
    assert gradient_pool_bytes(job(**flags, sharding="zero2", grad_accum=4)) == 2 * gradient_pool_bytes(zero2)
    assert gradient_pool_bytes(job(**flags, sharding="zero2", offload="optimizer")) == 0
    assert gradient_pool_bytes(job(**flags, sharding="zero3")) == 0


def test_the_root_of_fsdp_is_received_in_a_buffer_beside_its_tensors() -> None:
    """Table and head of 152,064 x 3,584 in 16 bits, and this process's eighth of them, which is cast before it is sent."""
    tables = 2 * 152_064 * 3_584
    assert fsdp_gather_pool_bytes(job(model="qwen2.5-7b", method="full", gpu="h200-sxm:8", sharding="fsdp")) == 2 * tables * 9 / 8
    assert fsdp_gather_pool_bytes(job(sharding="zero3")) == 0


def test_weights_that_were_flattened_on_the_gpu_leave_their_blocks_behind() -> None:
    """From DeepSpeed 0.19.0 on as much as the trained weights, where the card holds them twice; before, the cache was emptied."""
    flags = {"model": "qwen2.5-7b", "method": "full", "sharding": "zero2", "gpu": "h200-sxm:8"}
    new = job(**flags)
    assert flattened_leftover_bytes(new) == 2 * new.counts.total
    assert flattened_leftover_bytes(job(**flags, versions="deepspeed==0.18.9")) == 0
    assert flattened_leftover_bytes(job(**{**flags, "gpu": "rtx4090:8"})) == 0
    assert flattened_leftover_bytes(job(**{**flags, "sharding": "zero3"})) == 0


def test_one_process_has_no_gather_pool() -> None:
    """What is not gathered takes no pool, with adapters or without."""
    for method in ("lora", "full"):
        assert gather_pool(job(model="qwen2.5-7b", method=method, gpu="h200-sxm:1")) == 0


def test_passes_run_in_the_blocks_that_set_up_left() -> None:
    """Stages 1 and 2 copied their part (2 bytes) and stepped once with fp32 gradients (4 bytes): shorter passes cost nothing."""
    flags = {"model": "qwen2.5-7b", "method": "full", "gpu": "h200-sxm:2", "sharding": "zero2", "versions": "deepspeed==0.18.9"}
    subject = job(**flags)
    assert initial_block_bytes(subject) == (2 + 4) * subject.counts.total / 2
    assert initial_block_bytes(job(**flags, offload="optimizer")) == 0
    assert initial_block_bytes(job(**{**flags, "sharding": "zero3"})) == 0
    short, longer = (estimate(job(**{**flags, "seq": seq}).scenario).memory.reserved_peak_bytes for seq in (256, 512))
    # Fragments follow the transient bytes; a few thousandths of what the second 256 tokens hold.
    assert longer - short < 0.05 * 256 * 28 * 3_584 * 2
