"""The JSON of a validation, of scores made by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from planner.calibration.fit.screen import LeftOut
from planner.calibration.score.validate import Validation
from planner.report.validation.document import ValidationDocument, validation_document, validation_json
from planner.units import GIB
from tests.planner.report.validation.made import ERRORS, ROW, score

FAILED = replace(ROW, memory=None, oom=None, not_modelled="no formula")
VALIDATION = Validation((score(memory=ERRORS),), score("overall", not_modelled_rows=(FAILED,)), (ROW,), "fit")


def test_rows_are_there_only_when_asked() -> None:
    """Null without ``--rows``; bytes are whole numbers, errors fractions."""
    assert validation_document(VALIDATION, with_rows=False).rows is None
    rows = validation_document(VALIDATION, with_rows=True).rows
    assert rows is not None
    (row,) = rows
    assert row.memory is not None
    assert (row.memory.measured, row.memory.predicted, row.memory.error) == (20 * GIB, 25 * GIB, 0.25)
    assert isinstance(row.memory.predicted, int)
    assert (row.verdict, row.throughput, row.not_modelled, row.oom) == (None, None, None, "right")


def test_scores_are_those_of_the_sources() -> None:
    """A row that has no prediction is counted, and listed with its reason."""
    found = validation_document(VALIDATION, with_rows=False)
    assert found.sources[0].memory is not None
    assert found.sources[0].memory.quantities == {"driver_bytes": 3}
    assert (found.sources[0].not_modelled, found.overall.not_modelled) == (0, 1)
    assert [(each.id, each.reason) for each in found.overall.not_modelled_rows] == [("r1", "no formula")]


@pytest.mark.parametrize(
    ("histories", "found"), [(None, None), ({}, []), ({"r1": "not kept"}, [("r1", "not kept")])]
)
def test_a_history_that_is_not_scored_says_why(
    histories: dict[str, str] | None, found: list[tuple[str, str]] | None
) -> None:
    """Null without ``--history``; doubtful rows are beside them.  The text follows its own schema."""
    text = validation_json(
        VALIDATION, with_rows=True, histories=histories, doubtful=[LeftOut("r1", "rule", "why")]
    )
    ValidationDocument.model_validate_json(text)
    said = json.loads(text)
    listed = said["histories"]
    assert (None if listed is None else [(each["record_id"], each["not_scored"]) for each in listed]) == found
    assert said["doubtful"] == [{"id": "r1", "rule": "rule", "reason": "why"}]
    assert (said["cv"], said["fit"], said["prior"]) == ("none", None, None)
