"""The closed form against the trace on real widths: the allocated peak, phase by phase."""

from __future__ import annotations

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from measure.trace.program import trace_events
from measure.trace.summary import summarize
from planner.domain.coefficients import Coefficients
from planner.domain.scenario import Scenario
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.job import job_of
from planner.memory.peak import predict_memory

# Largest difference in percent of the trace's peak that each cell may show today.  Larger ones have a reason.
LIMITS = {
    ("llama-3.2-1b", "full", False): 5.0,
    ("llama-3.2-1b", "full", True): 5.0,
    ("llama-3.2-1b", "lora", False): 5.0,
    ("llama-3.2-1b", "lora", True): 5.0,
    ("llama-3.2-1b", "qlora", True): 5.0,
    ("llama-3.2-1b", "int8", False): 2.0,
}


def _scenario(model: str, method: str, *, checkpointing: bool) -> Scenario:
    flags = {"model": model, "method": method, "gpu": "a100-80gb", "seq": "1024", "batch": "2"}
    return resolve(from_flags({**flags, "gradient_checkpointing": str(checkpointing).lower()}))


@pytest.mark.parametrize(("model", "method", "checkpointing"), LIMITS)
def test_the_closed_form_agrees_with_the_trace(model: str, method: str, checkpointing: bool) -> None:
    """The peaks of allocated memory differ by no more than the limit of the cell."""
    case = _scenario(model, method, checkpointing=checkpointing)
    traced = summarize(trace_events(case)).allocated_peak_bytes
    predicted = predict_memory(job_of(case, Coefficients())).allocated_peak_bytes
    assert 100 * abs(predicted - traced) / traced <= LIMITS[model, method, checkpointing]


def _allocated_by_phase(padding: dict[str, str], *, checkpointing: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Allocated bytes by phase as (traced, predicted) for a model with grouped heads."""
    flags = {"model": "smollm2-135m", "method": "lora", "gpu": "a100-80gb", "seq": "256", "batch": "2", **padding}
    case = resolve(from_flags({**flags, "gradient_checkpointing": str(checkpointing).lower()}))
    traced = {each.peaks.phase: each.peaks.allocated_bytes for each in summarize(trace_events(case)).phases}
    predicted = {each.phase: int(each.allocated_bytes) for each in predict_memory(job_of(case, Coefficients())).phases}
    return traced, {phase: predicted[phase] for phase in traced}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_padding_costs_the_same_bytes_in_both(checkpointing: bool) -> None:
    """What a padded batch adds under SDPA agrees to the byte in every phase: masks of layers, the shared one, whole heads."""
    packed = _allocated_by_phase({"padding": "packed"}, checkpointing=checkpointing)
    padded = _allocated_by_phase({"padding": "max_length", "tokens_per_sample": "200"}, checkpointing=checkpointing)
    traced, predicted = (
        {phase: with_pad[phase] - without[phase] for phase in without} for without, with_pad in zip(packed, padded, strict=True)
    )
    assert traced == predicted
    assert traced["forward"] > 0
