"""The levers of a job in the form that the human report still reads; goes with that report."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.calibration import Calibration
from planner.domain.coefficients import Coefficients
from planner.domain.scenario import Scenario
from planner.prediction import PRIORS
from planner.searching.levers import levers


@dataclass(frozen=True, slots=True)
class Change:
    """One lever with its flags as text."""

    description: str
    flags: str
    saves_bytes: int
    step_time_ratio: float | None
    fits: bool


def changes_that_fit(scenario: Scenario, model: Coefficients | Calibration = PRIORS) -> tuple[Change, ...]:
    """The levers of a job, in their order."""
    return tuple(
        Change(each.description, each.flags_text, each.saves_bytes, each.step_time_ratio, each.fits)
        for each in levers(scenario, model)
    )
