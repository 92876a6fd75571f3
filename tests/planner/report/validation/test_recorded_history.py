"""A recorded history beside its prediction, on three groups of terms."""

from __future__ import annotations

from typing import Any

from planner.allocator.documents.replay_document import ReplayDocument
from planner.domain.prediction import MemoryPrediction
from planner.domain.term import Phase, Term, TermName
from planner.report.render.layout import Grid, Note
from planner.report.validation.recorded_history import HistoryScore, history_sections, score_history
from planner.units import GIB


def term(name: TermName, gib: float, *phases: Phase) -> Term:
    """A term that is there in some phases."""
    return Term(name, name, gib * GIB, "replicated", frozenset(phases), "")


def memory(*terms: Term) -> MemoryPrediction:
    """A prediction of these terms."""
    return MemoryPrediction(terms, (), "backward", 0, 0, 0, 0, 0, 0, None)


def document(terms: dict[str, int], phase: str = "backward") -> ReplayDocument:
    """A history of 10 GiB at its peak."""
    said: dict[str, Any] = {
        "schema": "measure/replay@1", "events": 9, "outcome": "fits", "allocated_peak_bytes": 10 * GIB,
        "reserved_peak_bytes_replayed": 11 * GIB, "reserved_peak_bytes_recorded": 12 * GIB,
        "peak": {
            "phase": phase, "allocated_bytes": 10 * GIB,
            "terms": [{"name": name, "bytes": gib * GIB} for name, gib in terms.items()],
        },
        "phases": [],
    }  # fmt: skip
    return ReplayDocument.model_validate(said)


def pairs(score: HistoryScore) -> list[tuple[str, float, float]]:
    """Name, measured and predicted GiB of each group."""
    return [(each.name, each.measured_bytes / GIB, each.predicted_bytes / GIB) for each in score.pairs]


def test_terms_that_a_history_cannot_tell_apart_are_one_group() -> None:
    """Masters count as weights; what neither side has is left out."""
    planned = memory(term("weights", 4, "backward"), term("master_weights", 2, "backward"))
    score = score_history("run-1", document({"weights": 7, "gradients": 3}), planned)
    assert pairs(score) == [("weights", 7, 6), ("gradients", 3, 0)]
    assert (score.record_id, score.phase, score.allocated_bytes) == ("run-1", "backward", 10 * GIB)
    assert (score.recorded_reserved_bytes, score.replayed_reserved_bytes) == (12 * GIB, 11 * GIB)


def test_only_terms_of_the_phase_of_the_peak_are_beside_it() -> None:
    """Logits are gone in backward; temporaries of a pass are four terms."""
    planned = memory(
        term("logits_and_loss", 3, "loss"),
        term("block_recompute", 1, "backward", "loss"),
        term("dequantization", 2, "backward"),
    )
    score = score_history("run-1", document({"other_temporaries": 5}), planned)
    assert pairs(score) == [("temporaries of a pass", 5, 3)]


def test_differences_are_shares_of_the_peak() -> None:
    """One GiB less of ten is a tenth; without a history there is the reason."""
    score = score_history("run-1", document({"weights": 7}), memory(term("weights", 6, "backward")))
    table, why = history_sections({"run-1": score, "run-2": "it is not there"})
    grid, note = table.blocks
    assert isinstance(grid, Grid)
    assert isinstance(note, Note)
    assert grid.rows[0].cells == ("weights", "7.00", "6.00", "-1.00", "-10.0 %")
    assert "12.00 reserved at most, 11.00 in the replay" in note.text
    assert why.blocks == (Note("it is not there", "warn"),)
