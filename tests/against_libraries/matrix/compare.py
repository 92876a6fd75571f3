"""One cell through both instruments, and the difference term by term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from matrix.cells import Cell, scenario_of
from planner.domain.coefficients import Coefficients
from planner.domain.prediction import MemoryPrediction
from planner.domain.recipe import Number
from planner.memory.job import job_of
from planner.memory.peak import predict_memory
from planner.searching.variants import with_sizes

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


def planned(cells: Sequence[Cell], phases: Sequence[str]) -> list[Planned]:
    """Ask the closed form about cells that differ in length alone, all at once; ``phases``: where each trace peaks."""
    length = np.array([float(cell.seq_tokens) for cell in cells])
    scenario = with_sizes(scenario_of(cells[0]), cells[0].batch, length, length)
    memory = predict_memory(job_of(scenario, Coefficients()), by_phase=False)
    allocated, reserved = (_one_each(amount, len(cells)) for amount in (memory.allocated_peak_bytes, memory.reserved_peak_bytes))
    terms = {phase: _terms_in(memory, phase, len(cells)) for phase in dict.fromkeys(phases)}
    return [
        Planned(allocated[i], reserved[i], {name: sizes[i] for name, sizes in terms[phase].items()})
        for i, phase in enumerate(phases)
    ]


def _terms_in(memory: MemoryPrediction, phase: str, count: int) -> dict[str, list[int]]:
    totals: dict[str, Number] = {}
    for term in memory.terms:
        if phase in term.phases:
            totals[term.name] = totals.get(term.name, 0) + term.n_bytes
    return {name: _one_each(amount, count) for name, amount in totals.items()}


def _one_each(amount: Number, count: int) -> list[int]:
    return [round(float(each)) for each in np.broadcast_to(np.asarray(amount, dtype=np.float64), (count,))]


def worst_group(plan: Mapping[str, int], trace: Mapping[str, int], peak_bytes: int) -> tuple[str, float]:
    """(group of terms, percent of the peak) with the largest difference of the closed form from the trace."""
    differences = {group: sum(plan.get(name, 0) - trace.get(name, 0) for name in names) for group, names in GROUPS.items()}
    worst = max(differences, key=lambda group: abs(differences[group]))
    return worst, 100 * differences[worst] / peak_bytes
