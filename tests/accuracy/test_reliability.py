"""How P(fits) is judged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.accuracy.reliability import reliability


def row(source: str, outcome: str, probability: float) -> Any:
    """What is read of the score of one row."""
    return SimpleNamespace(
        record=SimpleNamespace(source=source, outcome=outcome),
        prediction=SimpleNamespace(fits_probability=probability),
        oom="right",
    )


def test_a_table_of_runs_that_ended_says_nothing_of_p() -> None:
    """Two rows of a source with a failure count; those of a source that prints none do not."""
    told = [row("both", "ok", 0.4), row("both", "oom", 0.2)]
    ended = [row("ended", "ok", 0.3)] * 5
    found = reliability([*told, *ended])
    assert [(each["n"], each["promised"], each["ran"]) for each in found] == [(2, 0.3, 0.5)]
