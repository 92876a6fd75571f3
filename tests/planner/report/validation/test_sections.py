"""Sections of a validation, of scores made by hand."""

from __future__ import annotations

from dataclasses import replace

from planner.calibration.score.metrics import BoundSummary, OomSummary
from planner.calibration.score.ranking import RankAgreement
from planner.calibration.score.validate import Validation
from planner.records.parsing import MAX_TOLD
from planner.report.render.layout import Grid, Note
from planner.report.validation.sections import validation_sections
from tests.planner.report.validation.made import ERRORS, RECORD, ROW, score


def shown(validation: Validation, *, with_rows: bool = False) -> dict[str, list[tuple[str, ...]]]:
    """Cells of each section's rows and its notes, by its title."""
    return {
        section.title: [
            cells
            for block in section.blocks
            for cells in (
                [row.cells for row in block.rows]
                if isinstance(block, Grid)
                else [(block.text,)]
                if isinstance(block, Note)
                else []
            )
        ]
        for section in validation_sections(validation, with_rows=with_rows)
    }


def test_errors_and_verdicts_of_sources_stand_above_those_of_all() -> None:
    """Shares in per cent, the median with its sign; a source without a reading has no line."""
    oom = OomSummary(1, 3, 1, 0, 0, 0, 0)
    found = shown(
        Validation(
            (score("a", memory=ERRORS), score("b")), score("overall", memory=ERRORS, oom=oom), (), "fit"
        )
    )
    cells = ("3", "20.0 %", "-10.0 %", "30.0 %", "r1", "driver 3")
    assert found["GPU memory"] == [("a", *cells), ("overall", *cells)]
    assert "Throughput" not in found
    assert found[""][0] == ("GPU memory is off by 20.0 % on average; wrong verdicts: 1 of 4",)
    assert found["Verdict on GPU memory"][-1] == ("overall", "3", "1", "1", "0", "0", "0", "0")


def test_order_and_bounds_are_told_where_there_are_some() -> None:
    """Nine of twelve pairs; a bound is that of a source alone."""
    bound = BoundSummary(4, 3, 0.25, "r2")
    ranked = score("a", memory_ranks=RankAgreement(12, 9), host_bound=bound)
    found = shown(Validation((ranked,), score("overall", host_bound=bound), (), "fit"))
    assert found["Order of configurations"][0] == ("a", "12", "75.0 %", "", "")
    ((line,),) = found["Host RAM against installed memory, an upper bound"]
    assert line.startswith("a: 3 of 4")
    assert "25.0 % (r2)" in line


def test_rows_left_out_for_one_reason_are_one_line() -> None:
    """With the first of them; unread lines are told up to a number."""
    rows = tuple(
        replace(ROW, record=replace(RECORD, id=f"r{index}"), not_modelled=why)
        for index, why in enumerate(("no formula", "odd", "no formula", "no formula"))
    )
    unread = tuple(f"line {index}" for index in range(MAX_TOLD + 2))
    validation = Validation((score(),), score("overall", not_modelled_rows=rows), (), "fit", unread=unread)
    found = shown(validation)
    assert found["Not scored"] == [("r0 and 2 more", "no formula"), ("r1", "odd")]
    assert [text for (text,) in found[""] if text.startswith("Left out: ")] == [
        f"Left out: {each}" for each in unread[:MAX_TOLD]
    ]
    assert any(text.startswith("Left out too: 2 more") for (text,) in found[""])


def test_a_row_says_what_was_compared_and_what_went_wrong() -> None:
    """A full card caps a reading; a right verdict is listed only where the job ran out."""
    full = replace(ROW, record=replace(RECORD, censored=True, phase_reached="forward"), oom="false_oom")
    ran_out = replace(ROW, record=replace(RECORD, id="r2", outcome="oom"), memory=None)
    found = shown(
        Validation((score(),), score("overall"), (ROW, full, ran_out), "fit"),
        with_rows=True,
    )
    first, second, _legend = found["Rows: GPU memory in GiB"]
    assert first[2:] == ("driver", "20.00", "25.00", "+25.0 %", "")
    assert second[2:] == ("driver full", "20.00", "25.00", "+25.0 %", "forward")
    wrong, right = found["Rows: out of memory, or judged wrongly"]
    assert (wrong[0], wrong[3].partition(":")[0]) == ("r1", "FALSE OOM")
    assert (right[0], right[2:]) == ("r2", ("oom", "right"))
