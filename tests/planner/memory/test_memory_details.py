"""The numbers behind host RAM and behind what is no request of the program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.prediction import HostPrediction, MemoryPrediction
from planner.domain.term import HostTerm, Term
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.memory_details import with_details
from planner.memory.replayed_peak import REPLAY
from planner.program.job import Job, job_of
from planner.units import GIB
from tests.planner.intake.jobs import scenario_of


def job(**flags: object) -> Job:
    """The usual job with these flags."""
    return job_of(scenario_of(**flags), Coefficients())


def detail(asked: Job, formula: str) -> str:
    """What is said of a GPU term of this formula."""
    memory = MemoryPrediction(
        (Term("context", "", 0, "replicated", frozenset(), formula),), (), "backward", 0, 0, 0, 0, 0, 0, None
    )
    return with_details(asked, memory, HostPrediction((), *(0,) * 7, None))[0].terms[0].detail


def host_detail(asked: Job, formula: str) -> str:
    """What is said of a term of host RAM."""
    memory = MemoryPrediction((), (), "backward", 0, 0, 0, 0, 0, 0, None)
    host = HostPrediction((HostTerm("x", 0, f"planner.memory.{formula}"),), *(0,) * 7, None)
    return with_details(asked, memory, host)[1].terms[0].detail


def test_a_context_is_threads_times_bytes() -> None:
    """An RTX 4090 has 128 multiprocessors of 1,536 threads."""
    coefficients = Coefficients()
    text = detail(job(gpu="4090"), "planner.memory.outside:context_bytes")
    each = f"thread_memory_bytes {coefficients.thread_memory_bytes:.0f} B"
    assert text.startswith(f"{128 * 1536:,} threads (128 multiprocessors) x {each} + context_bytes ")
    assert text.endswith(coefficients.name)


def test_a_card_that_nobody_knows_is_said_to_count_as_another() -> None:
    """Its multiprocessors are unknown."""
    text = detail(job(gpu=None, gpu_memory="24GiB"), "planner.memory.outside:context_bytes")
    assert "threads (those of the card are unknown: as an A100)" in text


def test_a_coefficient_has_its_unit() -> None:
    """Bytes as bytes, anything else with four digits."""
    coefficients = replace(Coefficients(), nccl_bytes=1.5 * GIB, name="mine")
    asked = replace(job(), coefficients=coefficients)
    assert detail(asked, "planner.memory.outside:nccl_bytes") == "coefficient nccl_bytes = 1.50 GiB, mine"


def test_states_are_told_by_optimizer_and_parameters() -> None:
    """LoRA of rank 8 over all linear layers of Llama-2-7B trains 20 million; of one process, over nothing."""
    asked = job(model="llama-2-7b", lora_rank=8, lora_targets="all-linear", optimizer="paged_adamw_32bit")
    text = host_detail(asked, "outside:paged_bytes")
    assert text == "paged_adamw_32bit over 19.99 M parameters"


@pytest.mark.parametrize(("gpus", "each"), [(1, "6.74 B"), (4, "1.68 B")])
def test_offloaded_states_are_those_of_one_process(gpus: int, each: str) -> None:
    """A full fine-tune of 6.74 billion parameters over one GPU, and over four."""
    flags = {"model": "llama-2-7b", "method": "full", "gpu": f"a100-80gb:{gpus}"}
    asked = job(**flags, sharding="zero2", offload="optimizer")
    text = host_detail(asked, "host:offloaded_optimizer_bytes")
    assert text.startswith(f"{each} parameters per process, ")


@pytest.mark.parametrize(
    ("pins", "words"), [("true", "pinned, rounded to powers of two"), ("false", "not pinned")]
)
def test_what_is_offloaded_is_pinned_where_the_stack_does(pins: str, words: str) -> None:
    """Page-locked buffers have sizes of their own."""
    flags = {"model": "llama-2-7b", "method": "full", "gpu": "a100-80gb", "switches": f"pins_offload={pins}"}
    asked = job(**flags, sharding="zero2", offload="optimizer")
    assert host_detail(asked, "host:offloaded_optimizer_bytes").endswith(f" per process, {words}")


def test_what_is_reserved_and_not_allocated_is_told_by_both() -> None:
    """3 GiB more than 10 GiB are reserved at most."""
    terms = tuple(
        Term("allocator_slack", "", size * GIB, "transient", frozenset(), REPLAY) for size in (1, 2)
    )
    memory = MemoryPrediction(terms, (), "backward", 10 * GIB, 0, 0, 0, 0, 0, None)
    told = with_details(job(), memory, HostPrediction((), *(0,) * 7, None))[0]
    expected = "13.00 GiB reserved at most - 10.00 GiB allocated at most"
    assert [each.detail for each in told.terms] == [expected] * 2


def test_a_term_that_says_something_keeps_it() -> None:
    """And one whose formula nobody explains says nothing."""
    own = Term("weights", "", 0, "replicated", frozenset(), "planner.memory.outside:nccl_bytes", "said")
    memory = MemoryPrediction((own, replace(own, formula="x:y", detail="")), (), "backward", *(0,) * 6, None)
    told = with_details(job(), memory, HostPrediction((), *(0,) * 7, None))[0]
    assert [each.detail for each in told.terms] == ["said", ""]
