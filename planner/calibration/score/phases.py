"""One record against its prediction phase by phase:
what a run of our own read in each phase beside what was predicted for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from planner.arrays import minimum
from planner.calibration.score.metrics import ErrorSummary, summarise
from planner.calibration.score.rows import Comparison
from planner.domain.prediction import MemoryPrediction, PhasePeak
from planner.domain.run_record import RunRecord
from planner.domain.term import PHASES, Phase

if TYPE_CHECKING:
    from planner.records.measured import PhaseReading, RawReadings

PhaseLevel = Literal["allocated", "reserved"]
PHASE_LEVELS: tuple[PhaseLevel, ...] = ("allocated", "reserved")


@dataclass(frozen=True, slots=True)
class PhaseScore:
    """One phase of one record, in bytes of the fullest rank.

    ``allocated`` and ``reserved`` are ``None`` where the device has no such figure (a CPU) or the phase was
    not gone through to its end.  ``host_rss_bytes`` is that of the largest process at the end of the phase;
    ``predicted_allocated_bytes`` is what the formulas place on a GPU.
    """

    phase: Phase
    allocated: Comparison | None
    reserved: Comparison | None
    host_rss_bytes: int | None
    predicted_allocated_bytes: int | None


@dataclass(frozen=True, slots=True)
class PhaseErrors:
    """Errors of one phase at one level, over all records that have it."""

    phase: Phase
    level: PhaseLevel
    errors: ErrorSummary


def score_phases(
    record: RunRecord, raw: RawReadings | None, memory: MemoryPrediction | None
) -> tuple[PhaseScore, ...]:
    """Every phase that the readings of ``record`` have, in their order;
    empty without readings or without a prediction.

    The phase in which a run ended short was not gone through to its end,
    so its peak says nothing and is left out.
    """
    if raw is None or memory is None:
        return ()
    predicted = {each.phase: each for each in memory.phases}
    unfinished = None if record.outcome == "ok" else record.phase_reached
    found: dict[Phase, list[PhaseReading]] = {}
    for rank in raw.ranks:
        for reading in rank.phases:
            if reading.phase != unfinished:
                found.setdefault(reading.phase, []).append(reading)
    ordered = sorted(found, key=PHASES.index)
    return tuple(_score(phase, found[phase], predicted.get(phase), memory) for phase in ordered)


def _score(
    phase: Phase, readings: Sequence[PhaseReading], peak: PhasePeak | None, memory: MemoryPrediction
) -> PhaseScore:
    resident = [each.host_rss_bytes for each in readings if each.host_rss_bytes is not None]
    return PhaseScore(
        phase,
        _compare("allocated", [each.allocated_peak_bytes for each in readings], peak, memory),
        _compare("reserved", [each.reserved_peak_bytes for each in readings], peak, memory),
        max(resident, default=None),
        None if peak is None else round(float(peak.allocated_bytes)),
    )


def _compare(
    level: PhaseLevel, readings: Iterable[int | None], peak: PhasePeak | None, memory: MemoryPrediction
) -> Comparison | None:
    measured = [value for value in readings if value]
    if not measured or peak is None:
        return None
    # Peaks of phases are those of an unlimited card; the overall peak is what this card can show.
    predicted = minimum(getattr(peak, f"{level}_bytes"), getattr(memory, f"{level}_peak_bytes"))
    return Comparison(f"{level}_bytes", max(measured), round(float(predicted)))


def summarise_phases(scores: Mapping[str, Iterable[PhaseScore]]) -> tuple[PhaseErrors, ...]:
    """Errors of each phase and level over records (by id), each record with the same weight;
    phases in their order.
    """
    pairs: dict[tuple[Phase, PhaseLevel], list[tuple[str, Comparison]]] = {}
    for record_id, phases in scores.items():
        for score in phases:
            for level in PHASE_LEVELS:
                comparison: Comparison | None = getattr(score, level)
                if comparison is not None:
                    pairs.setdefault((score.phase, level), []).append((record_id, comparison))
    places = [(phase, level) for phase in PHASES for level in PHASE_LEVELS if (phase, level) in pairs]
    found = [(place, summarise(pairs[place])) for place in places]
    return tuple(PhaseErrors(*place, errors) for place, errors in found if errors is not None)
