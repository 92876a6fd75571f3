"""Sections of a cross-validation and of a fit, of numbers made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

from planner.calibration.fit.calibrate import Fitted
from planner.calibration.fit.personal import Personal
from planner.calibration.fit.screen import LeftOut
from planner.calibration.score.cross_validate import CrossValidation
from planner.calibration.score.validate import Validation
from planner.domain.uncertainty.calibration import Calibration, Knob, Offset, Support
from planner.report.render.layout import Grid, Note, Section
from planner.report.validation import cross_validation
from tests.planner.report.validation.made import ERRORS, score

# 0.75 of dense peak becomes 0.6, from 0.48 to 0.75; 200 MiB become 400, from 200 to 800.
SLOWER = Offset(Knob("matmul_efficiency"), math.log(0.8), math.log(1.25))
LARGER = Offset(Knob("context_bytes"), math.log(2), math.log(2))
CALIBRATION = Calibration(
    "mine", "", "", (SLOWER, LARGER), (), Support((), (), (), (), ()), (("time", 0.875),), 12, ("a", "b")
)
FITTED = Fitted(CALIBRATION, {}, (), (), ())


def cells(section: Section) -> list[tuple[str, ...]]:
    """Of the rows of all its grids."""
    return [row.cells for block in section.blocks if isinstance(block, Grid) for row in block.rows]


def notes(section: Section) -> str:
    """Its notes, one below the other."""
    return "\n".join(block.text for block in section.blocks if isinstance(block, Note))


def test_three_errors_of_a_source_stand_side_by_side() -> None:
    """Without a fit, in-sample, held out; what has no reading is left out."""

    def errors(mape: float) -> Validation:
        summary = replace(ERRORS, mape=mape)
        return Validation((score("a", memory=summary), score("b")), score("all", memory=summary), (), "fit")

    result = CrossValidation(FITTED, held_out=errors(0.3), in_sample=errors(0.1), prior=errors(0.5))
    first = cross_validation.cross_validation_sections(result, with_rows=False)[0]
    row = ("3", "50.0 %", "10.0 %", "30.0 %")
    assert cells(first) == [("a", *row), ("all", *row)]


def test_a_fit_is_told_as_values_not_as_offsets() -> None:
    """Prior, value and one standard deviation either way, in the coefficient's unit."""
    (fit,) = cross_validation.fit_sections(FITTED)
    assert cells(fit) == [
        ("matmul_efficiency", "0.75", "0.6", "0.48 to 0.75", "of dense peak"),
        ("context_bytes", "200.0 MiB", "400.0 MiB", "200.0 MiB to 800.0 MiB", ""),
    ]
    for words in ("2 free numbers", "12 rows of 2 groups", "time: 88 % of held-out"):
        assert words in notes(fit)


def test_what_was_not_fitted_and_not_used_is_grouped_by_why() -> None:
    """The commonest rule first, lines that are no record above records."""
    reasons = {"tile_rows": "few", "hook_s": "none", "nccl_bytes": "few"}
    out = tuple(LeftOut(name, "repeat", "?") for name in ("r1", "r2"))
    fitted = replace(FITTED, not_fitted=reasons, left_out=out)
    _, unfitted, left = cross_validation.fit_sections(fitted, [LeftOut("x:3", "no_file", "?")])
    assert cells(unfitted) == [("few", "tile_rows, nccl_bytes"), ("none", "hook_s")]
    assert notes(left) == "repeat 2, no_file 1"
    assert [row[0] for row in cells(left)] == ["x:3", "r1", "r2"]


def test_a_machine_is_told_by_what_ships_and_what_holds_there() -> None:
    """Its own offset comes on top of the shipped one: 0.75 x 0.8, and 0.9 of that."""
    own = Offset(Knob("matmul_efficiency", "host", "lab"), math.log(0.9), 0.0)
    other = Offset(Knob("matmul_efficiency", "host", "elsewhere"), 0.1, 0.1)
    calibration = replace(CALIBRATION, name="lab", offsets=(SLOWER, other, own))
    personal = Personal(calibration, 1, (), (), {"matmul_efficiency": SLOWER.offset})
    (fit,) = cross_validation.personal_sections(personal)
    assert cells(fit) == [("matmul_efficiency", "0.6", "0.54", "0.54 to 0.54", "of dense peak")]
