"""What lies outside of the allocator: the CUDA context by threads and kernels,
and columns that older int8 layers keep.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.catalog.gpus import gpu_entry, gpu_ids, load_gpu
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.outside import (
    context_bytes,
    counted_threads,
    nccl_bytes,
    outlier_terms,
    outlier_weight_bytes,
    resident_threads,
)
from planner.predicting import estimate
from planner.program.job import Job, job_of
from planner.units import GIB, GIGA, KIB, MEGA, MIB
from tests.jobs import job_by, resolved

BARE = replace(Coefficients(), context_bytes=0.0)


def job_on(gpu: str, coefficients: Coefficients = BARE) -> Job:
    """A small job on one card."""
    scenario = resolved({"model": "qwen2.5-1.5b", "method": "qlora", "gpu": gpu, "seq": 512})
    return job_of(scenario, coefficients)


@pytest.mark.parametrize(("gpu", "bare_mib"), [("rtx3090", 256), ("h200-sxm", 520)])
def test_contexts_without_kernels_are_those_that_people_saw(gpu: str, bare_mib: float) -> None:
    """Two cards of which a process of torch 2.7.1 that ran nothing was seen: within a twentieth,
    by threads alone.
    """
    assert context_bytes(job_on(gpu)) == pytest.approx(bare_mib * MIB, rel=0.05)


def test_the_context_grows_with_the_threads_that_a_card_holds() -> None:
    """82 multiprocessors of 1,536 threads, 128 of as many, 108 of 2,048, 132 of 2,048;
    kernels are on top of it.
    """
    threads = [resident_threads(job_on(gpu)) for gpu in ("rtx3090", "rtx4090", "a100-80-sxm", "h100-sxm")]
    assert threads == [82 * 1536, 128 * 1536, 108 * 2048, 132 * 2048]
    small, large = job_on("t4", Coefficients()), job_on("h100-sxm", Coefficients())
    assert float(context_bytes(large) - context_bytes(small)) == 2 * KIB * (132 * 2048 - 40 * 1024)


def test_a_card_whose_multiprocessors_are_unknown_counts_as_an_a100() -> None:
    """A card that the catalog does not describe that far, and one of another vendor,
    whose units hold nobody knows how many.
    """
    for gpu in ("b100", "mi300x"):
        assert load_gpu(gpu).multiprocessors is None
        assert (resident_threads(job_on(gpu)), counted_threads(job_on(gpu))) == (None, 108 * 2048)


def test_a_generation_whose_threads_are_unknown_counts_as_an_a100_and_says_so() -> None:
    """The number of multiprocessors alone tells no threads,
    so the report does not put it beside those of another card.
    """
    job = job_on("rtx4090")
    gpu = replace(job.hardware.gpu, compute_capability="99.0")
    other = replace(job.scenario, hardware=replace(job.hardware, gpu=gpu))
    assert counted_threads(job_of(other, BARE)) == 108 * 2048
    terms = estimate(other, Coefficients(), explain=True).memory.terms
    assert "unknown: as an A100" in next(
        term.detail for term in terms if term.formula.endswith("outside:context_bytes")
    )


@pytest.mark.parametrize(
    ("gpu", "words"), [("rtx4090", "196,608 threads (128 multiprocessors)"), ("b100", "unknown: as an A100")]
)
def test_the_report_says_how_many_threads_were_counted(gpu: str, words: str) -> None:
    """``--explain`` shows the card's multiprocessors and both coefficients,
    or that the card's are not known.
    """
    scenario = resolved({"model": "qwen2.5-1.5b", "method": "qlora", "gpu": gpu, "seq": 512})
    terms = estimate(scenario, Coefficients(), explain=True).memory.terms
    detail = next(term.detail for term in terms if term.formula.endswith("outside:context_bytes"))
    assert words in detail
    assert "thread_memory_bytes 2048 B + context_bytes 200.0 MiB" in detail


@pytest.mark.parametrize(
    "gpu_id",
    [each for each in gpu_ids() if {"multiprocessors", "fp32_tflop_per_s"} <= set(gpu_entry(each).origins)],
)
def test_multiprocessors_agree_with_the_rated_fp32_rate(gpu_id: str) -> None:
    """Rate / (2 x lanes x multiprocessors) is a clock that such cards run at;
    a wrong count would make it another one.
    """
    gpu = load_gpu(gpu_id)
    assert gpu.multiprocessors is not None
    assert gpu.fp32_flop_per_s is not None
    lanes = 64 if gpu.compute_capability in {"6.0", "7.0", "7.5", "8.0"} else 128
    clock_hz = gpu.fp32_flop_per_s / (2 * lanes * gpu.multiprocessors)
    # Chips of laptops run at half the clock of a desktop card's when their power is held low.
    assert (0.9 if "laptop" in gpu_id else 1.2) * GIGA - MEGA < clock_hz < 2.7 * GIGA


# Llama-2-7b: per layer four matrices of 4096 x 4096 and three of 4096 x 11008, in 32 layers.
HIDDEN, MLP, LAYERS = 4096, 11008, 32
ELEMENTS = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * MLP
# The stack of older layers, whose script does not call PEFT's k-bit preparation.
UNPREPARED = "hf-trainer@4 kbit_upcast=none"


def int8_job(stack: str, method: str = "int8") -> Job:
    """An int8 base of which an eighth of the columns met an outlier."""
    name, _, switches = stack.partition(" ")
    flags = {
        "model": "llama-2-7b",
        "method": method,
        "gpu": "rtx3090",
        "seq": 512,
        "stack": name,
        "precision": "fp16-mixed",
    }
    scenario = resolved({**flags, **({"switches": switches, "attention": "eager"} if switches else {})})
    return job_of(scenario, replace(Coefficients(), int8_outlier_fraction=0.125))


def test_older_layers_keep_outlier_columns_in_the_dtype_of_their_input() -> None:
    """Without k-bit preparation the stream is 16-bit:
    two bytes for each element of the columns that met an outlier.
    """
    job = int8_job(UNPREPARED)
    assert outlier_weight_bytes(job) == pytest.approx(0.125 * 2 * ELEMENTS * LAYERS)
    (term,) = outlier_terms(job)
    assert (term.name, term.n_bytes) == ("dequantization", outlier_weight_bytes(job))


def test_prepared_bases_keep_them_in_fp32_where_a_matrix_reads_fp32() -> None:
    """K-bit preparation makes norms fp32, and older matrices return their input's dtype:
    all but the attention output.
    """
    expected = 4 * (ELEMENTS - HIDDEN**2) + 2 * HIDDEN**2
    assert outlier_weight_bytes(int8_job("hf-trainer@4")) == pytest.approx(0.125 * LAYERS * expected)


@pytest.mark.parametrize(("stack", "method"), [("hf-trainer@5", "int8"), ("hf-trainer@4", "qlora")])
def test_newer_layers_and_other_bases_keep_none(stack: str, method: str) -> None:
    """bitsandbytes 0.46 drops the columns after the product, and 4-bit bases never had any."""
    assert outlier_weight_bytes(int8_job(stack, method)) == 0
    assert outlier_terms(int8_job(stack, method)) == ()


def test_only_several_processes_have_buffers_of_nccl() -> None:
    """On one card there is nobody to talk to."""
    flags = {"model": "qwen2.5-1.5b", "method": "full", "seq": 512, "gpu": "a100-80-sxm"}
    alone, two = (
        job_by({**flags, "gpus": gpus, "sharding": "ddp" if gpus > 1 else "none"}) for gpus in (1, 2)
    )
    assert nccl_bytes(alone) == 0
    assert nccl_bytes(two) == Coefficients().nccl_bytes > 0


def test_others_can_hold_all_of_a_card_and_never_more() -> None:
    """The limit is what is visible less what is taken;
    unknown on a card that says nothing or is not CUDA's.
    """
    job = job_on("rtx4090")
    visible = job.hardware.gpu.visible_memory_bytes
    assert visible is not None
    for taken, expected in ((0, visible), (GIB, visible - GIB), (2 * visible, 0)):
        hardware = replace(job.hardware, gpu_reserved_bytes=taken)
        assert hardware.limit_bytes == expected
    assert job_on("mi300x").hardware.limit_bytes is None


def test_gpus_that_divide_experts_have_groups_of_their_own() -> None:
    """One of all, one that divides experts, and one of those that have the same: none where nobody has."""
    flags = {"model": "qwen3-30b-a3b", "method": "full", "gpu": "h100-sxm:8", "nodes": 2, "seq": 512}
    flags |= {"stack": "torchtitan@2025", "sharding": "fsdp"}

    def groups(experts: int) -> float:
        job = job_by(flags | {"expert_parallel": experts})
        return float(nccl_bytes(job) / job.coefficients.nccl_bytes)

    assert [groups(experts) for experts in (1, 8, 16)] == [1, 3, 2]
