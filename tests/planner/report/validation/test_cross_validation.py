"""Sections of a cross-validation and of a fit, of numbers made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from planner.calibration.fit.calibrate import Fitted
from planner.calibration.fit.personal import Personal
from planner.calibration.fit.problem import Problem
from planner.calibration.fit.screen import LeftOut
from planner.calibration.fit.solver import Pull, Solution
from planner.calibration.fit.split import CrossFit
from planner.calibration.score.cross_validate import CrossValidation
from planner.calibration.score.validate import Validation
from planner.domain.uncertainty.calibration import Calibration, Knob, Offset, Support
from planner.report.render.layout import Grid, Note, Section
from planner.report.validation.cross_validation import (
    cross_validation_sections,
    fit_sections,
    personal_sections,
)
from tests.planner.report.validation.made import ERRORS, score

# 0.75 of dense peak becomes 0.6, from 0.48 to 0.75; 200 MiB become 400, from 200 to 800.
SLOWER = Offset(Knob("matmul_efficiency"), math.log(0.8), math.log(1.25))
LARGER = Offset(Knob("context_bytes"), math.log(2), math.log(2))
CALIBRATION = Calibration(
    "mine", "", "", (SLOWER, LARGER), (), Support((), (), (), (), ()), (("time", 0.875),), 12, ("a", "b")
)
EMPTY = Solution(np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 0)))
FIT = CrossFit(Problem("throughput", (), (SLOWER.knob,), np.ones(1), ()), (), (Pull(3.0),), EMPTY)
FITTED = Fitted(CALIBRATION, {}, (FIT,), (), ())


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
    first, fit, *rest = cross_validation_sections(result, with_rows=False)
    row = ("3", "50.0 %", "10.0 %", "30.0 %")
    assert cells(first) == [("a", *row), ("all", *row)]
    assert fit == fit_sections(FITTED)[0]
    assert all(section.blocks for section in rest)


def test_a_fit_is_told_as_values_not_as_offsets() -> None:
    """Prior, value and one standard deviation either way, in the coefficient's unit."""
    (fit,) = fit_sections(FITTED)
    assert cells(fit) == [
        ("matmul_efficiency", "0.75", "0.6", "0.48 to 0.75", "of dense peak"),
        ("context_bytes", "200.0 MiB", "400.0 MiB", "200.0 MiB to 800.0 MiB", ""),
    ]
    said = notes(fit)
    assert said.startswith("1 free numbers")
    assert "12 rows of 2 groups" in said
    assert "throughput 3\n" in said
    assert "time: 88 % of held-out readings" in said
    assert "nothing is shared" in notes(fit_sections(replace(FITTED, fits=()))[0])


def test_what_was_not_fitted_and_not_used_is_grouped_by_why() -> None:
    """The commonest rule first, lines that are no record above records."""
    unread = LeftOut("x.csv:3", "no_file", "odd")
    out = tuple(LeftOut(name, "repeat", "of r0") for name in ("r1", "r2"))
    reasons = {"tile_rows": "few", "hook_s": "none", "nccl_bytes": "few"}
    _, unfitted, left = fit_sections(replace(FITTED, not_fitted=reasons, left_out=out), [unread])
    assert cells(unfitted) == [("few", "tile_rows, nccl_bytes"), ("none", "hook_s")]
    assert notes(left) == "repeat 2, no_file 1"
    assert cells(left) == [
        ("x.csv:3", "no_file", "odd"),
        ("r1", "repeat", "of r0"),
        ("r2", "repeat", "of r0"),
    ]


def test_a_machine_is_told_by_what_ships_and_what_holds_there() -> None:
    """Its own offset comes on top of the shipped one: 0.75 x 0.8, and 0.9 of that."""
    own = Offset(Knob("matmul_efficiency", "host", "lab"), math.log(0.9), 0.0)
    other = Offset(Knob("matmul_efficiency", "host", "elsewhere"), 0.1, 0.1)
    calibration = replace(CALIBRATION, name="lab", offsets=(SLOWER, other, own))
    personal = Personal(calibration, 1, (), ("hook_s",), {"matmul_efficiency": SLOWER.offset})
    (fit,) = personal_sections(personal)
    assert cells(fit) == [("matmul_efficiency", "0.6", "0.54", "0.54 to 0.54", "of dense peak")]
    assert "hook_s" in notes(fit)
