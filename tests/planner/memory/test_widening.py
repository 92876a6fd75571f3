"""Blocks that the preparation of a 16-bit base leaves behind: by hand, against the allocator's model, and where they count."""

from __future__ import annotations

import pytest

from planner.allocator.caching_allocator import CachingAllocator
from planner.domain.coefficients import Coefficients
from planner.domain.scenario import Scenario
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.peak import predict_memory
from planner.memory.widening import left_by_replacing, left_by_widening_bytes
from planner.program.job import Job, job_of
from planner.units import MIB


def _scenario(**flags: object) -> Scenario:
    given = {"model": "baichuan2-7b", "method": "lora", "gpu": "h800-sxm", "seq": 1024, "batch": 2, "stack": "hf-trainer@4"}
    given |= {"switches": "prepares_unquantized=true", "optimizer": "paged_adamw_32bit", "gradient_checkpointing": True}
    given |= {"lora_rank": 64, "lora_dropout": 0.05}
    return resolve(from_flags({**given, "precision": "fp16-mixed", "load_dtype": "fp16", "padding": "max_length", **flags}))


def _job(**flags: object) -> Job:
    return job_of(_scenario(**flags), Coefficients())


def test_an_original_serves_a_smaller_matrix_that_comes_later() -> None:
    """50, 50 and 25 Mi weights: the first two copies need new blocks and leave 100 MiB each, the third takes one of these."""
    assert left_by_replacing([50 * MIB, 50 * MIB, 25 * MIB]) == [50 * MIB, 100 * MIB]


def test_a_block_that_is_cut_leaves_its_rest() -> None:
    """A copy of 60 MiB out of an original of 100 MiB leaves 40, and its own original of 30."""
    assert left_by_replacing([50 * MIB, 15 * MIB]) == [30 * MIB, 40 * MIB]


@pytest.mark.parametrize("model", ["baichuan2-7b", "llama-2-7b", "qwen1.5-1.8b"])
def test_the_model_of_the_allocator_leaves_as_much(model: str) -> None:
    """Loading in 16 bits and widening tensor by tensor, replayed: what is reserved and not allocated, to 3 % of the weights."""
    job = _job(model=model)
    linears = [linear.weight_count for group in job.model.groups for _ in range(group.count) for linear in group.block.linears]
    weights = [job.model.token_embedding.param_count, *linears, *([] if job.model.tied else [job.model.head.weight_count])]
    allocator = CachingAllocator()
    originals = [allocator.malloc(2 * count) for count in weights]
    for count, original in zip(weights, originals, strict=True):
        assert allocator.malloc(4 * count) is not None
        assert original is not None
        allocator.free(original)
    left = allocator.reserved_bytes - allocator.allocated_bytes
    assert left_by_widening_bytes(job) == pytest.approx(left, abs=0.03 * 4 * sum(weights))


def test_they_stay_reserved_beside_the_logits() -> None:
    """A base that comes in fp32 leaves none: the same job then reserves 5 to 11 GiB less and needs as much."""
    widened, plain = (predict_memory(_job(load_dtype=dtype)) for dtype in ("fp16", "fp32"))
    assert widened.allocated_peak_bytes == pytest.approx(float(plain.allocated_peak_bytes), rel=0.02)
    more = float(widened.reserved_peak_bytes) - float(plain.reserved_peak_bytes)
    assert 5 * 1024 * MIB < more < 11 * 1024 * MIB


@pytest.mark.parametrize(
    "flags", [{"method": "qlora"}, {"switches": "prepares_unquantized=false"}, {"load_dtype": "fp32"}, {"sharding": "zero2"}]
)
def test_other_jobs_leave_none(flags: dict[str, str]) -> None:
    """Quantised bases, stacks that prepare none, bases in fp32 and DeepSpeed's engine: nothing is widened as a whole."""
    assert left_by_widening_bytes(_job(**flags)) == 0
