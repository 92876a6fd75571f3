"""Terms, phases and levels of a job that was replayed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from planner.calibration.fit.targets import on_card
from planner.domain.term import ALLOCATED_TERMS, DRIVER_TERMS, RESERVED_TERMS
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed_peak import _EXPANDED, _LENGTHS, _OF_ENGINES, _WRITTEN, REPLAY, predict_replayed
from planner.program.job import Job, job_of
from planner.report.prediction.explain import formula_text
from planner.units import MIB
from tests.jobs import resolved

PRIORS = Coefficients()


scenario = partial(resolved, model="qwen2.5-0.5b", method="lora", gpu="4090", seq=512, batch=1)
"""A small LoRA job."""


def job(**flags: object) -> Job:
    """The same, ready for formulas."""
    return job_of(scenario(**flags), PRIORS)


def test_the_states_of_a_job_are_what_their_shapes_say() -> None:
    """Of a full fine-tune in bf16: 2 bytes a weight, and two states of 2 bytes each after the first step."""
    whole = job(method="full", load_dtype="bf16", precision="bf16", optimizer="adamw_torch")
    memory = predict_replayed(whole)
    weights = whole.base_params
    names = {term.name: float(term.n_bytes) for term in memory.terms if "forward_2" in term.phases}
    assert names["weights"] == pytest.approx(2 * weights, rel=1e-6)
    assert names["optimizer_states"] == pytest.approx(4 * weights, rel=1e-3)


def test_the_verdict_is_that_of_the_card_of_the_job() -> None:
    """The minimum lies on the right side of the card's own limit, to the byte."""
    base = scenario(method="lora", batch=4)
    need = int(predict_replayed(job_of(base, Coefficients())).must_have_bytes)
    for limit in (need - 200 * MIB, need - MIB, need, need + MIB):
        card = replace(base.hardware.gpu, visible_memory_bytes=limit)
        memory = predict_replayed(
            job_of(replace(base, hardware=replace(base.hardware, gpu=card)), Coefficients()), why=True
        )
        assert (memory.must_have_bytes <= limit) == (memory.failed is None)


def test_a_full_card_shows_less_than_its_limit() -> None:
    """It gives cached blocks back before a request for which there is no room, which is smaller than what is
    missing.  A card with room to spare shows what one without a limit would.
    """
    base = scenario(batch=2)
    roomy = predict_replayed(job_of(base, PRIORS))
    need, shown = float(roomy.must_have_bytes), float(roomy.uncapped_driver_bytes)
    limit = int(need + 0.7 * (shown - need))
    full = predict_replayed(job_of(on_card(base, limit), PRIORS))
    assert roomy.driver_peak_bytes == shown == full.uncapped_driver_bytes
    assert full.allocated_peak_bytes < full.reserved_peak_bytes < full.driver_peak_bytes < limit - 64 * MIB
    assert full.driver_peak_bytes - full.reserved_peak_bytes == shown - roomy.reserved_peak_bytes
    assert full.allocated_peak_bytes == roomy.allocated_peak_bytes


def test_what_writes_a_term_down_exists_and_says_its_source() -> None:
    """Every reference of a term is a function or class, and its text has a first sentence and a source."""
    assert not _OF_ENGINES & set(_WRITTEN)
    for reference in {*_WRITTEN.values(), *_EXPANDED.values(), _LENGTHS, REPLAY}:
        text = formula_text(reference)
        assert text.summary, reference
        assert text.source, reference
    sharded = predict_replayed(job_of(scenario(gpu="a100-80-sxm:2", sharding="zero2"), PRIORS))
    engines = {term.formula for term in sharded.terms if term.name in _OF_ENGINES}
    assert engines
    assert all(formula_text(reference).source for reference in engines), engines


@pytest.mark.parametrize(
    "flags",
    [
        {"method": "full"},
        {"method": "qlora", "optimizer": "paged_adamw_32bit"},
        {"method": "lora", "padding": "longest", "tokens_per_sample": 100, "batch": 8, "gpu": "a100-80gb"},
        {"method": "full", "gpu": "a100-80gb:2", "sharding": "zero2"},
    ],
    ids=lambda flags: "-".join(map(str, flags.values())),
)
def test_terms_of_the_fullest_phase_add_up_to_the_levels(flags: dict[str, object]) -> None:
    """What is allocated, then what the allocator caches, then what lies outside of it."""
    made = predict_replayed(job_of(scenario(**flags), PRIORS))
    terms = [term for term in made.terms if made.limiting_phase in term.phases]
    outside = sum(float(term.n_bytes) for term in terms if term.name in DRIVER_TERMS)
    cached = sum(float(term.n_bytes) for term in terms if term.name in RESERVED_TERMS)
    allocated = sum(float(term.n_bytes) for term in terms if term.name in ALLOCATED_TERMS)
    assert allocated == pytest.approx(float(made.allocated_peak_bytes), rel=1e-9)
    assert allocated + cached + outside == pytest.approx(float(made.uncapped_driver_bytes), rel=1e-9)
    assert made.allocated_peak_bytes <= made.must_have_bytes <= made.uncapped_driver_bytes


def test_what_was_reserved_stays_reserved_from_phase_to_phase() -> None:
    """So that level never falls, and the driver's lies above it by the context."""
    made = predict_replayed(job(method="full"))
    reserved = [float(phase.reserved_bytes) for phase in made.phases]
    assert reserved == sorted(reserved)
    context = sum(float(term.n_bytes) for term in made.terms if term.name == "context")
    assert all(phase.driver_bytes == phase.reserved_bytes + context for phase in made.phases)
    assert all(phase.allocated_bytes <= phase.reserved_bytes for phase in made.phases)


def test_what_was_reserved_goes_back_where_the_trainer_empties_the_cache() -> None:
    """Axolotl widens the table while it loads; the steps of a short batch need less."""
    made = predict_replayed(job(method="qlora", stack="axolotl", seq=128))
    reserved = {phase.phase: float(phase.reserved_bytes) for phase in made.phases}
    assert reserved["forward"] < reserved["load"] <= made.reserved_peak_bytes


def test_states_stand_whole_or_divided_and_all_else_comes_and_goes() -> None:
    """Under ZeRO-2 weights are replicated and masters and states are divided; a gradient comes and goes."""
    made = predict_replayed(job(method="full", gpu="a100-80gb:2", sharding="zero2"))
    kinds = {term.name: term.kind for term in made.terms if "forward_2" in term.phases}
    assert (kinds["weights"], kinds["master_weights"], kinds["optimizer_states"]) == (
        "replicated",
        "sharded",
        "sharded",
    )
    assert kinds["saved_activations"] == "transient"


def test_a_fit_asks_without_the_minimum() -> None:
    """It is then what is allocated, and all else is as it was."""
    whole, peaks = (predict_replayed(job(method="lora"), minimum_too=each) for each in (True, False))
    assert peaks.must_have_bytes < whole.must_have_bytes
    assert replace(peaks, must_have_bytes=0) == replace(whole, must_have_bytes=0)
