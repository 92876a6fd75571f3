"""A recorded allocator history beside the prediction: bytes by term in the phase where most was allocated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.allocator.documents.replay_document import GROUPS, ReplayDocument
from planner.domain.prediction import MemoryPrediction
from planner.report.render.layout import Block, Column, Grid, Note, Row, Section
from planner.report.render.numbers import gib
from planner.report.validation.row_words import signed_percent
from planner.units import GIB

_COLUMNS = (
    Column("term"),
    Column("measured", "right"),
    Column("predicted", "right"),
    Column("difference", "right"),
    Column("of peak", "right"),
)


@dataclass(frozen=True, slots=True)
class TermPair:
    """One group of terms in bytes, as the history has it and as the prediction does."""

    name: str
    measured_bytes: int
    predicted_bytes: int


@dataclass(frozen=True, slots=True)
class HistoryScore:
    """One record's history: ``phase`` is the one in which most was allocated,
    ``replayed`` holds the model of the allocator.
    """

    record_id: str
    phase: str
    allocated_bytes: int
    pairs: tuple[TermPair, ...]
    recorded_reserved_bytes: int
    replayed_reserved_bytes: int


def score_history(record_id: str, document: ReplayDocument, memory: MemoryPrediction) -> HistoryScore:
    """Groups of terms at the measured peak, beside what the prediction holds in that phase."""
    peak = document.peak
    measured = {term.name: term.bytes for term in peak.terms}
    pairs = []
    for group, names in GROUPS.items():
        planned = sum(
            float(term.n_bytes) for term in memory.terms if term.name in names and peak.phase in term.phases
        )
        pair = TermPair(group, sum(measured.get(name, 0) for name in names), round(planned))
        if pair.measured_bytes or pair.predicted_bytes:
            pairs.append(pair)
    return HistoryScore(
        record_id,
        peak.phase,
        peak.allocated_bytes,
        tuple(pairs),
        document.reserved_peak_bytes_recorded,
        document.reserved_peak_bytes_replayed,
    )


def history_sections(scores: Mapping[str, HistoryScore | str]) -> tuple[Section, ...]:
    """A table for each history; a text says why there is none."""
    return tuple(Section(f"Terms of {record_id}", _blocks(score)) for record_id, score in scores.items())


def _blocks(score: HistoryScore | str) -> tuple[Block, ...]:
    if isinstance(score, str):
        return (Note(score, "warn"),)
    rows = [
        Row(
            (
                pair.name,
                gib(pair.measured_bytes),
                gib(pair.predicted_bytes),
                f"{(pair.predicted_bytes - pair.measured_bytes) / GIB:+.2f}",
                signed_percent((pair.predicted_bytes - pair.measured_bytes) / score.allocated_bytes),
            )
        )
        for pair in score.pairs
    ]
    reserved = (
        f"{gib(score.recorded_reserved_bytes)} reserved at most, {gib(score.replayed_reserved_bytes)} "
        "in the replay"
    )
    where = (
        f"GiB in {score.phase or 'no phase'}, where most was allocated "
        f"({gib(score.allocated_bytes)}); {reserved}."
    )
    return (
        Grid(_COLUMNS, tuple(rows)),
        Note(f"{where}  Terms are told by when a block was made and let go.", "dim"),
    )
