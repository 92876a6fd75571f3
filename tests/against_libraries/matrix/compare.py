"""One cell through both instruments, and the difference term by term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matrix.cells import Cell, scenario_of
from planner.domain.coefficients import Coefficients
from planner.domain.prediction import MemoryPrediction
from planner.memory.job import job_of
from planner.memory.peak import predict_memory

# Terms that are compared together, because the border between them is where each instrument draws it: what the graph keeps and
# what one block adds to it; a weight's copy, expanded or cast, and the product that needs it.
GROUPS: dict[str, tuple[str, ...]] = {
    "weights": ("weights", "quantization_constants", "adapters", "master_weights"),
    "optimizer_states": ("optimizer_states",),
    "gradients": ("gradients", "gradient_buckets"),
    "optimizer_temporaries": ("optimizer_temporaries",),
    "passes": (
        "saved_activations",
        "block_recompute",
        "logits_and_loss",
        "autocast_copies",
        "dequantization",
        "other_temporaries",
    ),
}


@dataclass(frozen=True, slots=True)
class Traced:
    """What the trace of a cell says.  ``phases`` and ``terms`` (at the peak) are in bytes."""

    allocated_bytes: int
    reserved_bytes: int
    phase: str
    phases: Mapping[str, int]
    terms: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Planned:
    """What the closed form says of a cell.  ``terms`` are those alive in the phase that the trace peaks in."""

    allocated_bytes: int
    reserved_bytes: int
    phase: str
    phases: Mapping[str, int]
    terms: Mapping[str, int]


def traced(cell: Cell) -> Traced:
    """Run the trace.

    Raises:
        PlannerError: the cell cannot be traced; says why.
    """
    from measure.trace.program import trace_events
    from planner.allocator.summary import summarize

    summary = summarize(trace_events(scenario_of(cell)))
    return Traced(
        summary.allocated_peak_bytes,
        summary.reserved_peak_bytes,
        summary.peak.phase,
        {each.peaks.phase: each.peaks.allocated_bytes for each in summary.phases},
        {name: size for name, size in sorted(summary.peak.terms.items(), key=lambda item: -item[1]) if size},
    )


def planned(cell: Cell, phase: str) -> Planned:
    """Ask the closed form, and which of its terms are alive in ``phase``."""
    memory = predict_memory(job_of(scenario_of(cell), Coefficients()))
    return Planned(
        round(memory.allocated_peak_bytes),
        round(memory.reserved_peak_bytes),
        memory.limiting_phase,
        {peak.phase: round(peak.allocated_bytes) for peak in memory.phases},
        _terms_in(memory, phase),
    )


def _terms_in(memory: MemoryPrediction, phase: str) -> dict[str, int]:
    totals: dict[str, int] = {}
    for term in memory.terms:
        if phase in term.phases:
            totals[term.name] = totals.get(term.name, 0) + round(term.n_bytes)
    return totals


def worst_group(plan: Mapping[str, int], trace: Mapping[str, int], peak_bytes: int) -> tuple[str, float]:
    """(group of terms, percent of the peak) with the largest difference of the closed form from the trace."""
    differences = {group: sum(plan.get(name, 0) - trace.get(name, 0) for name in names) for group, names in GROUPS.items()}
    worst = max(differences, key=lambda group: abs(differences[group]))
    return worst, 100 * differences[worst] / peak_bytes
