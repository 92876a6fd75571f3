"""One job replayed: its phases and terms, its minimum, what fails on a smaller card, and batches of drawn lengths."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from planner.domain.coefficients import Coefficients
from planner.domain.scenario import Scenario
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.drawn_lengths import drawn_longest
from planner.memory.failing import failed_request
from planner.memory.peak import predict_memory
from planner.memory.replayed import least_bytes, replayed
from planner.memory.replayed_peak import predict_replayed
from planner.memory.shares import shares_by_phase
from planner.program.job import Job, job_of
from planner.units import GIB, MIB


def scenario(**flags: object) -> Scenario:
    """A small model on a large card."""
    return resolve(from_flags({"model": "qwen2.5-0.5b", "gpu": "a100-80gb", "method": "qlora", "seq": 512, **flags}))


def job(**flags: object) -> Job:
    """The same, ready for formulas."""
    return job_of(scenario(**flags), Coefficients())


@pytest.mark.parametrize("method", ["full", "lora", "qlora", "int8"])
def test_the_terms_of_each_phase_add_up_to_what_is_allocated(method: str) -> None:
    """Every byte has a term, rounding included, and nothing is reserved that is not allocated or cached."""
    one = job(method=method)
    done = replayed(one)
    for phase in done.phases:
        assert sum(phase.terms.values()) == phase.allocated_bytes
        assert min(phase.terms.values()) >= 0
        assert phase.reserved_bytes >= phase.allocated_bytes
    assert max(phase.allocated_bytes for phase in done.phases) <= least_bytes(one) <= done.reserved_bytes


def test_the_states_of_a_job_are_what_their_shapes_say() -> None:
    """Of a full fine-tune in bf16: 2 bytes a weight, and two states of 2 bytes each after the first step."""
    whole = job(method="full", load_dtype="bf16", precision="bf16", optimizer="adamw_torch")
    memory = predict_replayed(whole)
    weights = whole.counts.total
    names = {term.name: float(term.n_bytes) for term in memory.terms if "forward_2" in term.phases}
    assert names["weights"] == pytest.approx(2 * weights, rel=1e-6)
    assert names["optimizer_states"] == pytest.approx(4 * weights, rel=1e-3)


def test_a_card_that_holds_the_minimum_is_enough_and_a_smaller_one_names_what_fails() -> None:
    """Under the minimum the job ends; a tenth below what is allocated, a request of the last micro-step fails."""
    one = job(method="lora", batch=4)
    done = replayed(one)
    assert failed_request(one, least_bytes(one)) is None
    highest = max(phase.allocated_bytes for phase in done.phases)
    failed = failed_request(one, round(0.9 * highest))
    assert failed is not None
    assert failed.phase in ("loss", "loss_2", "backward", "backward_2", "forward", "forward_2")
    assert failed.part.startswith(("layer", "head"))
    assert failed.n_bytes > failed.largest_free_bytes


def test_the_verdict_is_that_of_the_card_of_the_job() -> None:
    """The minimum lies on the right side of the card's own limit, to the byte."""
    base = scenario(method="lora", batch=4)
    need = int(predict_replayed(job_of(base, Coefficients())).must_have_bytes)
    for limit in (need - 200 * MIB, need - MIB, need, need + MIB):
        card = replace(base.hardware.gpu, visible_memory_bytes=limit)
        memory = predict_replayed(job_of(replace(base, hardware=replace(base.hardware, gpu=card)), Coefficients()))
        assert (memory.must_have_bytes <= limit) == (memory.failed is None)


def test_the_operators_of_a_phase_add_up_to_its_terms() -> None:
    """At the fullest moment of the backward pass; all layers together."""
    one = job(method="qlora", seq=1024)
    found = shares_by_phase(one)["backward_2"]["weights"]
    assert sum(share.total_bytes for share in found) == pytest.approx(
        next(phase for phase in replayed(one).phases if phase.phase == "backward_2").terms["weights"], rel=1e-2
    )
    assert max(share.n_layers for share in found) == 24


def test_drawn_batches_grow_up_to_the_cap_and_are_the_same_every_time() -> None:
    """New longest batches only; none where every batch has one length."""
    varying = job(padding="longest", tokens_per_sample=120, batch=4)
    lengths = drawn_longest(varying)
    assert lengths == drawn_longest(varying)
    assert all(before < after for before, after in pairwise(lengths))
    assert 2 <= len(lengths) <= 30
    assert 1 <= lengths[0] <= lengths[-1] <= 512
    assert drawn_longest(job(padding="packed")) == []


def test_lengths_that_grow_leave_blocks_behind() -> None:
    """Logits of longer batches find no block in those of shorter ones: more is reserved than with one length."""
    done = replayed(job(model="qwen2.5-0.5b", padding="longest", tokens_per_sample=100, batch=8, seq=1024))
    assert done.length_cache_bytes > 0.2 * GIB
    assert done.order_spread_bytes > 0
    assert replayed(job(padding="packed")).length_cache_bytes == 0


@pytest.mark.parametrize(
    "flags",
    [
        {"method": "full"},
        {"method": "full", "gradient_checkpointing": False},
        {"method": "lora", "batch": 4},
        {"method": "qlora", "attention": "eager"},
        {"method": "int8"},
        {"model": "llama-3.1-8b", "method": "qlora", "seq": 2048},
        {"model": "mixtral-8x7b", "method": "qlora"},
        {"model": "gemma-2-9b", "method": "lora", "attention": "eager"},
        {"model": "qwen2.5-7b", "method": "full", "sharding": "zero2", "gpus": 8},
        {"model": "qwen2.5-7b", "method": "full", "sharding": "zero3", "gpus": 8},
        {"model": "qwen2.5-7b", "method": "full", "sharding": "fsdp", "gpus": 8},
        {"model": "qwen2.5-7b", "method": "lora", "sharding": "ddp", "gpus": 2},
    ],
    ids=lambda flags: "-".join(str(value) for value in flags.values()),
)
def test_the_closed_form_allocates_what_the_program_does(flags: dict[str, object]) -> None:
    """Both answers describe one step: the first screen's and that of ``--details`` are within 3 %."""
    one = job(**{"seq": 1024, **flags})
    assert predict_memory(one).allocated_peak_bytes == pytest.approx(predict_replayed(one).allocated_peak_bytes, rel=0.03)
