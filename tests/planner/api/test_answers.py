"""What Python gets of one answer, of a prediction made by hand."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from planner.api.building import answer_of
from planner.domain.prediction import Verdict
from planner.errors import DoesNotFit
from tests.planner.report.prediction import made

ANSWER = answer_of(made.subject())


@pytest.mark.parametrize("verdict", ["fits", "uncertain", "no_verdict", "host_memory_short", "does_not_fit"])
def test_only_a_job_that_is_short_raises(verdict: Verdict) -> None:
    """With the reason and the answer; what is uncertain neither fits nor raises."""
    answer = replace(ANSWER, verdict=verdict, why="too large")
    assert answer.fits == (verdict == "fits")
    if verdict not in ("host_memory_short", "does_not_fit"):
        answer.raise_if_short()
        return
    with pytest.raises(DoesNotFit, match="does not fit: too large") as raised:
        answer.raise_if_short()
    assert raised.value.answer is answer


def test_an_answer_draws_both_reports_and_does_not_change() -> None:
    """The first one and that of all details, of the width that is asked for."""
    assert ANSWER.render(60) == made.draw_short(made.subject(), width=60)
    assert ANSWER.render(60, details=True) == made.draw(made.subject(), width=60)
    assert str(ANSWER) == ANSWER.render(80).rstrip("\n")
    with pytest.raises(FrozenInstanceError):
        ANSWER.verdict = "uncertain"  # type: ignore[misc]
