"""The CUDA context: local memory of all threads that a card can hold, and the kernels that were loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.catalog.gpus import gpu_entry, gpu_ids, load_gpu
from planner.domain.coefficients import Coefficients
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.runtime import context_bytes, counted_threads, resident_threads
from planner.prediction import estimate
from planner.program.job import Job, job_of
from planner.units import GIGA, KIB, MEGA, MIB

BARE = replace(Coefficients(), context_bytes=0.0)


def job_on(gpu: str, coefficients: Coefficients = BARE) -> Job:
    """A small job on one card."""
    scenario = resolve(from_flags({"model": "qwen2.5-1.5b", "method": "qlora", "gpu": gpu, "seq": 512}))
    return job_of(scenario, coefficients)


@pytest.mark.parametrize(("gpu", "bare_mib"), [("rtx3090", 256), ("h200-sxm", 520)])
def test_contexts_without_kernels_are_those_that_people_saw(gpu: str, bare_mib: float) -> None:
    """Two cards of which a process of torch 2.7.1 that ran nothing was seen: within a twentieth, by threads alone."""
    assert context_bytes(job_on(gpu)) == pytest.approx(bare_mib * MIB, rel=0.05)


def test_the_context_grows_with_the_threads_that_a_card_holds() -> None:
    """82 multiprocessors of 1,536 threads, 128 of as many, 108 of 2,048, 132 of 2,048; kernels are on top of it."""
    threads = [resident_threads(job_on(gpu)) for gpu in ("rtx3090", "rtx4090", "a100-80-sxm", "h100-sxm")]
    assert threads == [82 * 1536, 128 * 1536, 108 * 2048, 132 * 2048]
    small, large = job_on("t4", Coefficients()), job_on("h100-sxm", Coefficients())
    assert float(context_bytes(large) - context_bytes(small)) == 2 * KIB * (132 * 2048 - 40 * 1024)


def test_a_card_whose_multiprocessors_are_unknown_counts_as_an_a100() -> None:
    """A card that the catalog does not describe that far, and one of another vendor, whose units hold nobody knows how many."""
    for gpu in ("b100", "mi300x"):
        assert load_gpu(gpu).multiprocessors is None
        assert (resident_threads(job_on(gpu)), counted_threads(job_on(gpu))) == (None, 108 * 2048)


def test_a_generation_whose_threads_are_unknown_counts_as_an_a100_and_says_so() -> None:
    """The number of multiprocessors alone tells no threads, so the report does not put it beside those of another card."""
    job = job_on("rtx4090")
    gpu = replace(job.hardware.gpu, compute_capability="99.0")
    other = replace(job.scenario, hardware=replace(job.hardware, gpu=gpu))
    assert counted_threads(job_of(other, BARE)) == 108 * 2048
    terms = estimate(other, Coefficients(), explain=True).memory.terms
    assert "unknown: as an A100" in next(term.detail for term in terms if term.formula.endswith("runtime:context_bytes"))


@pytest.mark.parametrize(
    ("gpu", "words"), [("rtx4090", "196,608 threads (128 multiprocessors)"), ("b100", "unknown: as an A100")]
)
def test_the_report_says_how_many_threads_were_counted(gpu: str, words: str) -> None:
    """``--explain`` shows the card's multiprocessors and both coefficients, or that the card's are not known."""
    scenario = resolve(from_flags({"model": "qwen2.5-1.5b", "method": "qlora", "gpu": gpu, "seq": 512}))
    terms = estimate(scenario, Coefficients(), explain=True).memory.terms
    detail = next(term.detail for term in terms if term.formula.endswith("runtime:context_bytes"))
    assert words in detail
    assert "thread_memory_bytes 2048 B + context_bytes 200.0 MiB" in detail


@pytest.mark.parametrize(
    "gpu_id", [each for each in gpu_ids() if {"multiprocessors", "fp32_tflop_per_s"} <= set(gpu_entry(each).origins)]
)
def test_multiprocessors_agree_with_the_rated_fp32_rate(gpu_id: str) -> None:
    """Rate / (2 x lanes x multiprocessors) is a clock that such cards run at; a wrong count would make it another one."""
    gpu = load_gpu(gpu_id)
    assert gpu.multiprocessors is not None
    assert gpu.fp32_flop_per_s is not None
    lanes = 64 if gpu.compute_capability in {"6.0", "7.0", "7.5", "8.0"} else 128
    clock_hz = gpu.fp32_flop_per_s / (2 * lanes * gpu.multiprocessors)
    # Chips of laptops run at half the clock of a desktop card's when their power is held low.
    assert (0.9 if "laptop" in gpu_id else 1.2) * GIGA - MEGA < clock_hz < 2.7 * GIGA
