"""What a document's own table settled: each choice concerns rows, its alternative is another job,
and worse counts as worse.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from planner.calibration.score.rows import score_record
from planner.catalog.location import data_dir
from planner.domain.run_record import RunRecord
from planner.records import read_records
from planner.records.calibration_file import read_calibration
from tests.accuracy.choices import Case, Choice, stored_choices, worst_errors
from tests.accuracy.published import published_dir


@cache
def records() -> tuple[RunRecord, ...]:
    """Every published row."""
    return read_records([published_dir() / "*.csv"]).records


@pytest.mark.parametrize("choice", stored_choices(), ids=lambda choice: choice.question)
def test_a_choice_concerns_rows_and_changes_them(choice: Choice) -> None:
    """At least one row of the document is selected, and its other reading is another configuration."""
    concerned = [record for record in records() if choice.other_reading(record) is not None]
    assert concerned
    assert all(record.source == choice.source for record in concerned)
    assert all(choice.other_reading(record) != record for record in concerned)


@pytest.mark.figures
@pytest.mark.parametrize("n_timed", [4, pytest.param(99, marks=pytest.mark.slow)])
def test_the_other_readings_never_make_it_better(n_timed: int) -> None:
    """The error with the worse of both readings is at least that of the settled one.

    Documents with few such rows stand for all: two whose memory is replayed, and ``n_timed`` for times.
    """
    model = read_calibration(data_dir() / "calibration" / "default.json")
    concerned = Counter(
        choice.source for choice in stored_choices() for record in records() if choice.other_reading(record)
    )
    by_rows = [source for source, _ in concerned.most_common()][::-1]
    for quantity, sources in (("memory", {*by_rows[:2]}), ("throughput", {*by_rows[:n_timed]})):
        choices = [choice for choice in stored_choices() if choice.source in sources]
        quick = quantity != "memory"
        rows = [score_record(record, model, quick=quick) for record in records() if record.source in sources]
        settled = worst_errors(
            rows, [Choice(source, "", ()) for source in sources], lambda _: model, quantity
        )
        worst = worst_errors(rows, choices, lambda _: model, quantity)
        assert settled.keys() == worst.keys()
        assert all(worst[source] >= settled[source] for source in worst)
        assert any(worst[source] > settled[source] for source in worst)


def test_another_unit_scales_what_is_there() -> None:
    """A factor moves the number that a row has; a row without that number stays as it was."""
    row = next(record for record in records() if record.peak_memory_mib is not None)
    choice = Choice(row.source, "", (Case({}, {}, {"peak_memory_mib": 1.5}),))
    other = choice.other_reading(row)
    assert other is not None
    assert row.peak_memory_mib is not None
    assert other.peak_memory_mib == 1.5 * row.peak_memory_mib
    blank = replace(row, peak_memory_mib=None)
    assert choice.other_reading(blank) == blank
