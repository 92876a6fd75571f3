"""Jobs by their flags, as the intake resolves them and as the step program reads them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.program.job import Job, job_of

_NONE: Mapping[str, object] = MappingProxyType({})


def resolved(flags: Mapping[str, object] = _NONE, /, *, force: bool = False, **more: object) -> Scenario:
    """The job of ``flags`` and ``more``, which has the last word; ``None`` leaves a flag out.

    ``force``: what would be refused is let pass.
    """
    return resolve(from_flags({**flags, **more}), force=force)


def job_by(flags: Mapping[str, object] = _NONE, /, **more: object) -> Job:
    """The same job as its step program reads it, without a calibration."""
    return job_of(resolved(flags, **more), Coefficients())
