"""One cell through both instruments, and the difference term by term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matrix.cells import Cell, scenario_of
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed import replayed
from planner.program.job import job_of
from planner.words import words

# Terms that are compared together, because the border between them is where each instrument draws it: what
# the graph keeps and what one block adds to it; a weight's copy, expanded or cast, and the product that needs
# it.
GROUPS: dict[str, tuple[str, ...]] = {
    "weights": ("weights", "quantization_constants", "adapters", "master_weights"),
    "optimizer_states": ("optimizer_states",),
    "gradients": ("gradients", "gradient_buckets"),
    "optimizer_temporaries": ("optimizer_temporaries",),
    "passes": words(
        """
        saved_activations block_recompute logits_and_loss autocast_copies dequantization other_temporaries
        """
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
    """What the step program says of a cell.
    ``terms`` are those at its peak in the phase that the trace peaks in.
    """

    allocated_bytes: int
    reserved_bytes: int
    phases: Mapping[str, int]
    terms: Mapping[str, int]


def traced(cell: Cell) -> Traced:
    """Run the trace.

    Raises:
        PlannerError: the cell cannot be traced; says why.
    """
    from measure.trace.traced_job import trace_events
    from planner.allocator.documents.summary import summarize

    summary = summarize(trace_events(scenario_of(cell)))
    return Traced(
        summary.allocated_peak_bytes,
        summary.reserved_peak_bytes,
        summary.peak.phase,
        {each.peaks.phase: each.peaks.allocated_bytes for each in summary.phases},
        {name: size for name, size in sorted(summary.peak.terms.items(), key=lambda item: -item[1]) if size},
    )


def planned(cell: Cell, phase: str) -> Planned:
    """Replay the program of a cell; ``phase``: where its trace peaks."""
    phases = {each.phase: each for each in replayed(job_of(scenario_of(cell), Coefficients())).phases}
    allocated = {name: each.allocated_bytes for name, each in phases.items()}
    reserved = max(each.reserved_bytes for each in phases.values())
    terms = next(each.terms for name, each in phases.items() if name == phase)
    return Planned(max(allocated.values()), reserved, allocated, dict(terms))


def worst_phase(plan: Mapping[str, int], trace: Mapping[str, int], peak_bytes: int) -> tuple[str, float]:
    """(phase, percent of the peak) with the largest difference of the program from the trace."""
    return _worst({phase: plan[phase] - n_bytes for phase, n_bytes in trace.items()}, peak_bytes)


def worst_group(plan: Mapping[str, int], trace: Mapping[str, int], peak_bytes: int) -> tuple[str, float]:
    """(group of terms, percent of the peak) with the largest difference of the program from the trace."""
    differ = {
        group: sum(plan.get(name, 0) - trace.get(name, 0) for name in names)
        for group, names in GROUPS.items()
    }
    return _worst(differ, peak_bytes)


def _worst(differ: Mapping[str, int], peak_bytes: int) -> tuple[str, float]:
    worst = max(differ, key=lambda name: abs(differ[name]))
    return worst, 100 * differ[worst] / peak_bytes
