"""The request that fails, the operators of a term, and memory over the step, of a real job."""

from __future__ import annotations

import re

import pytest

from planner.allocator.slots import SlotEvents, replay_slots
from planner.domain.coefficients import Coefficients
from planner.domain.prediction import MemoryPrediction
from planner.domain.scenario import Scenario
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.failing import ends_expandable, failed_request
from planner.memory.over_time import timeline_of
from planner.memory.replayed_peak import _OF_ENGINES, _SLACK, _WRITTEN, predict_replayed
from planner.memory.shares import Share, with_shares
from planner.prediction import PRIORS
from planner.program.job import job_of
from planner.report.prediction.explain import formula_text
from planner.units import GIB, MIB

FLAGS = {"model": "qwen2.5-0.5b", "method": "lora", "gpu": "4090", "seq": 512, "batch": 1}


def scenario(**flags: object) -> Scenario:
    """A small LoRA job."""
    return resolve(from_flags({**FLAGS, **flags}))


@pytest.fixture(scope="module")
def memory() -> MemoryPrediction:
    """Its memory."""
    return predict_replayed(job_of(scenario(), PRIORS))


def test_expandable_segments_join_what_plain_ones_keep_apart() -> None:
    """Two blocks of 30 MiB are freed; 60 MiB are one piece only where segments expand."""
    events = [0, 1, ~0, ~1, 2, 3]
    program = SlotEvents(events, [30 * MIB, 30 * MIB, 8 * MIB, 52 * MIB], (), [0])
    # The 8 MiB lie in the first of the two, which is therefore not given back.
    assert replay_slots(program, 64 * MIB).failure is not None
    assert ends_expandable(program, 64 * MIB)
    assert not ends_expandable(program, 52 * MIB)


def test_the_first_request_that_a_card_cannot_serve_is_found() -> None:
    """With room for the weights alone it is in the first forward pass or its loss; with plenty there is none."""
    job = job_of(scenario(), Coefficients())
    assert failed_request(job, 80 * GIB) is None
    states = int(predict_replayed(job).state_bytes)
    failed = failed_request(job, states + 100 * MIB)
    assert failed is not None
    assert failed.phase in ("forward", "loss")
    assert failed.n_bytes > failed.largest_free_bytes
    assert re.fullmatch(r"layer \d+|head|embeddings|products", failed.part)


def test_the_timeline_has_the_peaks_of_the_prediction(memory: MemoryPrediction) -> None:
    """Moments are in order, add up by term, and the fullest is that of the prediction less what the program does not count."""
    made = timeline_of(scenario(), PRIORS, memory)
    events = [moment.event for moment in made.moments]
    assert events == sorted(events)
    assert all(sum(moment.terms.values()) == moment.allocated_bytes for moment in made.moments)
    assert made.peak.allocated_bytes <= memory.allocated_peak_bytes
    assert made.peak.allocated_bytes >= 0.97 * float(memory.allocated_peak_bytes)
    assert made.peak.phase == memory.limiting_phase
    assert [span.end for span in made.spans[:-1]] == [span.start for span in made.spans[1:]]


def test_operators_of_a_term_are_counted_by_layer(memory: MemoryPrediction) -> None:
    """24 equal layers are one entry, and all entries of a term at the peak add up to it."""
    named = with_shares(job_of(scenario(), Coefficients()), memory)
    weights = next(term for term in named.terms if term.name == "weights" and memory.limiting_phase in term.phases)
    assert re.search(r"24 layers x \w+_proj weight 8\.3 MiB", weights.detail)
    assert str(Share("q_proj mm", 24, 2, 16 * MIB)) == "24 layers x 2 x q_proj mm 16.0 MiB"
    assert Share("q_proj mm", 24, 2, 16 * MIB).total_bytes == 768 * MIB


def test_what_writes_a_term_down_exists_and_says_its_source() -> None:
    """Every reference of a term is a function or class, and its text has a first sentence and a source."""
    assert not _OF_ENGINES & set(_WRITTEN)
    for reference in {*_WRITTEN.values(), _SLACK}:
        text = formula_text(reference)
        assert text.summary, reference
        assert text.source, reference
    sharded = predict_replayed(job_of(scenario(gpu="a100-80-sxm:2", sharding="zero2"), PRIORS))
    engines = {term.formula for term in sharded.terms if term.name in _OF_ENGINES}
    assert engines
    assert all(formula_text(reference).source for reference in engines), engines
