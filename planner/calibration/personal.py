"""One machine's own records on top of a calibration: an offset for each coefficient that they depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from types import MappingProxyType

import numpy as np

from planner.calibration.calibrate import Fitted, support_of
from planner.calibration.fit import Pull, Solution, solve
from planner.calibration.machine import Attachments, one_machine
from planner.calibration.problem import Problem, machine_problem
from planner.calibration.screen import LeftOut, nothing_usable, screen
from planner.calibration.targets import QUANTITIES, Floats, Target, targets_of
from planner.calibration.unused import unused_times
from planner.domain.calibration import Calibration, Offset, Support, formulas_version
from planner.domain.hierarchy import FREEDOM
from planner.domain.run_record import RunRecord
from planner.errors import UsageError

# How much one reading of the machine itself counts: repeated runs of one machine differ by far less than documents do.
_WEIGHT = 4.0


@dataclass(frozen=True, slots=True)
class Personal:
    """A personal calibration, how many numbers it moved, what it left out, and coefficients that no reading depends on."""

    calibration: Calibration
    free_numbers: int
    left_out: tuple[LeftOut, ...]
    untouched: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnchorGain:
    """What one measured row of a held-out group does for the others: mean absolute errors, the median over the choice of row.

    ``before``: by the calibration without the group; ``after``: with one row of it as an anchor.  Fractions.
    """

    group: str
    n_rows: int
    before: float
    after: float


def calibrate_machine(
    records: Sequence[RunRecord], name: str, base: Calibration, attachments: Attachments = MappingProxyType({})
) -> Personal:
    """Offsets of one machine from its own ``records``, on top of ``base``; ``attachments`` by record id say where they ran.

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
            offsets += _offsets(problem, solve(problem, _weights(problem)[None, :], [Pull()]))
    calibration = replace(
        base,
        name=name,
        machine=name,
        environment=environment,
        date=datetime.now(UTC).date().isoformat(),
        formulas=formulas_version(),
        offsets=(*base.offsets, *offsets),
        support=_joined(base.support, support_of(targets)),
        n_rows=base.n_rows + len({target.record.id for target in targets}),
        groups=(*base.groups, name),
    )
    untouched = tuple(name for name in FREEDOM if all(each.knob.coefficient != name for each in offsets))
    return Personal(calibration, len(offsets), (*screened.left_out, *unused_times(screened.used)), untouched)


def anchor_gains(fitted: Fitted, records: Sequence[RunRecord]) -> tuple[AnchorGain, ...]:
    """For each group with at least three timed rows, the gain in throughput of one anchor row, which is not scored itself.

    The machine of a row is its group and GPU, so an anchor helps only the rows of its own machine.
    """
    screened = screen(records)
    targets = [t for record, scenario in screened.used for t in targets_of(record, scenario) if t.quantity == "throughput"]
    by_machine: dict[tuple[str, str], list[Target]] = {}
    for target in targets:
        by_machine.setdefault((target.group, target.host), []).append(target)
    found: dict[str, list[tuple[Floats, Floats]]] = {}
    for (group, host), mine in by_machine.items():
        problem = machine_problem("throughput", mine, fitted.without[group].offsets, host)
        if problem is not None and len(mine) > 1:
            found.setdefault(group, []).append(_with_each_anchor(problem))
    return tuple(_gain(group, pairs) for group, pairs in found.items() if sum(len(pair[0]) for pair in pairs) > 2)


def _with_each_anchor(problem: Problem) -> tuple[Floats, Floats]:
    """(absolute errors without an anchor, mean absolute error of the other rows for each choice of anchor)."""
    count = len(problem.targets)
    solution = solve(problem, _WEIGHT * np.eye(count), [Pull()] * count)
    before = np.abs(np.expm1(problem.errors(np.zeros((1, len(problem.knobs))))[0]))
    others = ~np.eye(count, dtype=bool)
    after = np.abs(np.expm1(solution.errors))
    return before, np.array([after[row, others[row]].mean() for row in range(count)])


def _gain(group: str, pairs: Sequence[tuple[Floats, Floats]]) -> AnchorGain:
    before = np.concatenate([pair[0] for pair in pairs])
    after = np.concatenate([pair[1] for pair in pairs])
    return AnchorGain(group, len(before), float(before.mean()), float(median(after)))


def _weights(problem: Problem) -> Floats:
    """Every reading of the machine by its grade: they are its own, so many of them count as many."""
    return np.array([_WEIGHT * target.weight for target in problem.targets])


def _offsets(problem: Problem, solution: Solution) -> list[Offset]:
    values = problem.offsets(solution.points[0])
    spreads = solution.spread[0] * problem.spread
    return [Offset(knob, float(v), float(s)) for knob, v, s in zip(problem.knobs, values, spreads, strict=True)]


def _joined(first: Support, second: Support) -> Support:
    def both(name: str) -> tuple[str, ...]:
        return tuple(sorted({*getattr(first, name), *getattr(second, name)}))

    return Support(both("generations"), both("gpus"), both("families"), both("methods"))


def gains_by_group(gains: Sequence[AnchorGain]) -> Mapping[str, AnchorGain]:
    """The gains by the name of their group."""
    return {gain.group: gain for gain in gains}
