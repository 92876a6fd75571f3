"""Which calibration answers a job: the one asked for, that of the machine it would run on,
or the one that ships.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.catalog.location import data_dir
from planner.domain.scenario import Assumption, Scenario
from planner.domain.uncertainty.calibration import Calibration
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import UsageError
from planner.predicting import PRIORS
from planner.records.calibration_file import (
    DEFAULT_CALIBRATION,
    NO_CALIBRATION,
    find_calibration,
    matching_calibrations,
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Coefficients with the reason for them: an assumption where there is something to say, and warnings."""

    model: Coefficients | Calibration
    assumption: Assumption | None = None
    warnings: tuple[str, ...] = ()

    def noted_on(self, scenario: Scenario) -> Scenario:
        """``scenario`` with the choice among its assumptions and warnings."""
        added = () if self.assumption is None else (self.assumption,)
        return replace(
            scenario,
            assumptions=(*scenario.assumptions, *added),
            warnings=(*scenario.warnings, *self.warnings),
        )


def chosen_calibration(name: str | None) -> Choice:
    """The coefficients that were asked for, else those that ship, with a warning where these cannot be used.

    Raises:
        UnknownNameError: no calibration of that name.
        InputFileError: the one that was asked for is malformed or was fitted with other formulas.
    """
    folder = data_dir() / "calibration"
    if name == NO_CALIBRATION:
        return Choice(PRIORS)
    if name is not None:
        return Choice(find_calibration(name, folder))
    try:
        return Choice(find_calibration(DEFAULT_CALIBRATION, folder))
    except UsageError as error:
        return Choice(PRIORS, warnings=(f"uncalibrated, because the calibration cannot be used: {error}",))


def calibration_for(scenario: Scenario, name: str | None) -> Choice:
    """As :func:`chosen_calibration`; where none is asked for, the only personal one of this GPU,
    stack and host.

    Raises:
        UnknownNameError: no calibration of that name.
        InputFileError: the one that was asked for is malformed or was fitted with other formulas.
    """
    choice = chosen_calibration(name)
    if name is not None:
        return replace(choice, assumption=Assumption("calibration", name, "cli"))
    matching = matching_calibrations(scenario)
    usable = {own: found for own, found in matching if isinstance(found, Calibration)}
    unusable = tuple(
        f"a personal calibration is left out: {found}"
        for _, found in matching
        if not isinstance(found, Calibration)
    )
    if len(usable) > 1:
        names = ", ".join(usable)
        warning = (
            f"{len(usable)} personal calibrations match this job ({names}), so none is used; say which "
            "one: --calibration NAME"
        )
        return replace(choice, warnings=(*choice.warnings, *unusable, warning))
    if not usable:
        return replace(choice, warnings=(*choice.warnings, *unusable))
    ((own, calibration),) = usable.items()
    made_on = calibration.environment.label if calibration.environment else ""
    note = f"measured on {made_on}, as this job; --calibration default leaves it out"
    return Choice(calibration, Assumption("calibration", own, "personal", note), unusable)
