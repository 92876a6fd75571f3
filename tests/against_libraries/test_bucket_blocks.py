"""What gradient buckets do to the cache when they are made before the loss runs backward, held against the allocator's model."""

from __future__ import annotations

import pytest

from planner.allocator.caching_allocator import CachingAllocator
from planner.domain.coefficients import Coefficients
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.cache import bucket_leftover_bytes
from planner.memory.job import Job, job_of
from planner.memory.sharding import bucket_count, early_bucket_bytes
from planner.units import MIB

BLOCK_BYTES = 2 * MIB


def job(seq: int) -> Job:
    """A LoRA under ZeRO-2 of DeepSpeed 0.12 whose logits stay in 16 bits: two buckets of 0.4 GB."""
    flags = {"model": "qwen-1.8b", "method": "lora", "gpu": "a100-80gb:2", "seq": seq, "batch": 1, "sharding": "zero2"}
    return job_of(resolve(from_flags({**flags, "stack": "qwen-finetune"})), Coefficients())


def idle_bytes(subject: Job, *, early: bool) -> int:
    """Reserved above allocated after three micro-steps of the loss as this model code writes it, one tensor after the other."""
    allocator = CachingAllocator()
    logits = int(subject.tokens * subject.model.vocab_size * 2)
    # Labels are shifted, so the loss sees one token less.
    shifted = logits - subject.model.vocab_size * 2
    bucket = int(early_bucket_bytes(subject) / bucket_count(subject))

    def take(n_bytes: int) -> object:
        block = allocator.malloc(n_bytes)
        assert block is not None
        return block

    def give(*blocks: object) -> None:
        for block in blocks:
            allocator.free(block)  # type: ignore[arg-type]

    for _ in range(3):
        whole, log_softmax = take(logits), take(shifted)
        give(whole)
        buckets = [take(bucket) for _ in range(bucket_count(subject))] if early else []
        of_loss, of_log_softmax = take(shifted), take(shifted)
        give(log_softmax, of_loss)
        of_slice = take(logits)
        give(of_log_softmax, of_slice)
        give(*buckets)
    return allocator.peak_reserved_bytes - allocator.peak_allocated_bytes


@pytest.mark.parametrize("seq", [1_024, 2_048, 4_096, 8_192])
def test_early_buckets_cost_what_is_left_of_the_logits_block(seq: int) -> None:
    """The buckets are cut from the free logits block, so the gradient of the loss needs a new one: the rest lies idle."""
    subject = job(seq)
    seen = idle_bytes(subject, early=True) - idle_bytes(subject, early=False)
    # Four blocks of logits and two buckets, each rounded up to whole segments.
    assert bucket_leftover_bytes(subject) == pytest.approx(max(seen, 0), abs=8 * BLOCK_BYTES)


def test_it_is_nothing_where_no_bucket_fits_into_the_logits() -> None:
    """At 1,024 tokens the logits take 0.31 GB, less than a bucket: the buckets get blocks of their own."""
    assert bucket_leftover_bytes(job(1_024)) == 0
    assert bucket_leftover_bytes(job(8_192)) > 1.6e9
