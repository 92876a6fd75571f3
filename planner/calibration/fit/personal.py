"""One machine's own records on top of a calibration: an offset for each coefficient that they depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from types import MappingProxyType

import numpy as np

from planner.calibration.fit.calibrate import support_of
from planner.calibration.fit.measured_machine import Attachments, one_machine
from planner.calibration.fit.problem import Problem, machine_problem
from planner.calibration.fit.screen import LeftOut, nothing_usable, screen
from planner.calibration.fit.solver import solve
from planner.calibration.fit.targets import QUANTITIES, Floats, targets_of
from planner.calibration.fit.unused import unused_readings
from planner.domain.run_record import RunRecord
from planner.domain.uncertainty.calibration import Calibration, Offset, Support, formulas_version
from planner.domain.uncertainty.hierarchy import FREEDOM
from planner.errors import UsageError

# How much one reading of the machine itself counts:
# repeated runs of one machine differ by far less than documents do.
OWN_WEIGHT = 4.0


@dataclass(frozen=True, slots=True)
class Personal:
    """A personal calibration, how many numbers it moved, what it left out,
    and coefficients that no reading depends on.

    ``shipped``: by coefficient, the offset that the calibration below it has.
    """

    calibration: Calibration
    free_numbers: int
    left_out: tuple[LeftOut, ...]
    untouched: tuple[str, ...]
    shipped: Mapping[str, float]


def calibrate_machine(
    records: Sequence[RunRecord],
    name: str,
    base: Calibration,
    attachments: Attachments = MappingProxyType({}),
) -> Personal:
    """Offsets of one machine from its own ``records``, on top of ``base``;
    ``attachments`` by record id say where they ran.

    Records of another machine than most are left out.

    Raises:
        UsageError: no record can be used, or as many records are of one machine as of another.
    """
    environment, screened = one_machine(screen(records), attachments)
    targets = [target for record, scenario in screened.used for target in targets_of(record, scenario)]
    if not targets:
        raise UsageError(nothing_usable(screened.left_out))
    offsets: list[Offset] = []
    for quantity in QUANTITIES:
        problem = machine_problem(quantity, targets, base.offsets, name)
        if problem is not None:
            found = solve(problem, _weights(problem)[None, :])
            offsets += problem.fitted(found.points[0], found.spread[0])
    calibration = replace(
        base,
        name=name,
        machine=name,
        environment=environment,
        date=datetime.now(UTC).date().isoformat(),
        formulas=formulas_version(),
        offsets=(*base.offsets, *offsets),
        support=_joined(base.support, support_of([(name, each.scenario) for each in targets], 1)),
        n_rows=base.n_rows + len({target.record.id for target in targets}),
        groups=(*base.groups, name),
    )
    untouched = tuple(name for name in FREEDOM if all(each.knob.coefficient != name for each in offsets))
    left_out = (*screened.left_out, *unused_readings(screened.used))
    shipped = {each.knob.coefficient: each.offset for each in base.offsets}
    return Personal(calibration, len(offsets), left_out, untouched, shipped)


def _weights(problem: Problem) -> Floats:
    """Every reading of the machine by its grade: they are its own, so many of them count as many."""
    return np.array([OWN_WEIGHT * target.weight for target in problem.targets])


def _joined(first: Support, second: Support) -> Support:
    names = (each.name for each in fields(Support))
    return Support(*(tuple(sorted({*getattr(first, name), *getattr(second, name)})) for name in names))
