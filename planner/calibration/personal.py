"""One machine's own records on top of a calibration: an offset for each coefficient that they depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean, median
from types import MappingProxyType

import numpy as np

from planner.calibration.calibrate import Fitted, support_of
from planner.calibration.fit import Pull, Solution, solve
from planner.calibration.machine import Attachments, one_machine
from planner.calibration.problem import Problem, machine_problem
from planner.calibration.rows import throughput_column
from planner.calibration.screen import LeftOut, nothing_usable, screen
from planner.calibration.targets import QUANTITIES, Floats, Target, targets_of
from planner.calibration.unused import unused_times
from planner.domain.calibration import Calibration, Offset, Support, applies, formulas_version
from planner.domain.hierarchy import FREEDOM
from planner.domain.run_record import RunRecord
from planner.errors import UsageError

# How much one reading of the machine itself counts: repeated runs of one machine differ by far less than documents do.
_WEIGHT = 4.0
# How hard the effects of one machine may be held to those of machines like it: times the prior.  The second is what the published
# rows choose together (:func:`chosen_pull`); a slow test says so when they choose another.
OWN_PULLS = tuple(Pull(machine=pull) for pull in (1.0, 4.0, 10.0, 25.0))
OWN_PULL = OWN_PULLS[1]


@dataclass(frozen=True, slots=True)
class Personal:
    """A personal calibration, how many numbers it moved, what it left out, and coefficients that no reading depends on.

    ``shipped``: by coefficient, the offset that the calibration below it has for the job of the first record.
    """

    calibration: Calibration
    free_numbers: int
    left_out: tuple[LeftOut, ...]
    untouched: tuple[str, ...]
    shipped: Mapping[str, float]


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
            offsets += _offsets(problem, solve(problem, _weights(problem)[None, :], [OWN_PULL]))
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
    left_out = (*screened.left_out, *unused_times(screened.used))
    return Personal(calibration, len(offsets), left_out, untouched, _shipped(base, targets[0]))


def _shipped(base: Calibration, target: Target) -> Mapping[str, float]:
    """Offsets of ``base`` for one job, summed over the levels that apply."""
    found: dict[str, float] = {}
    for each in base.offsets:
        if applies(each.knob, target.scenario, target.host):
            found[each.knob.coefficient] = found.get(each.knob.coefficient, 0.0) + each.offset
    return found


def anchor_gains(fitted: Fitted, records: Sequence[RunRecord]) -> tuple[AnchorGain, ...]:
    """For each group with timed rows, the gain in throughput of one anchor row, which is not scored itself.

    The machine of a row is its group and GPU, so an anchor helps only the rows of its own machine.  Rows of an ambiguous
    configuration (grade C) neither anchor nor count.  Rows with and without offload are told apart, as their times have other
    causes.  How hard a machine's effects are held is chosen on the other groups (:func:`chosen_pull`).
    """
    gains = {pull: gains_under(pull, fitted, records) for pull in OWN_PULLS}
    groups = dict.fromkeys(each.group for each in gains[OWN_PULL])
    return tuple(each for group in groups for each in gains[chosen_pull(gains, group)] if each.group == group)


def chosen_pull(gains: Mapping[Pull, Sequence[AnchorGain]], without: str = "") -> Pull:
    """The pull with the smallest error after an anchor, averaged over all groups but one; ``OWN_PULL`` where there is none."""
    means = {
        pull: fmean(each.after for each in found if each.group.partition(" (")[0] != without.partition(" (")[0])
        for pull, found in gains.items()
        if any(each.group.partition(" (")[0] != without.partition(" (")[0] for each in found)
    }
    return min(means, key=lambda pull: means[pull]) if means else OWN_PULL


def gains_under(pull: Pull, fitted: Fitted, records: Sequence[RunRecord]) -> tuple[AnchorGain, ...]:
    """As :func:`anchor_gains`, with the effects of machines held by ``pull`` for all groups."""
    screened = screen(records)
    targets = [t for record, scenario in screened.used for t in targets_of(record, scenario) if t.quantity == "throughput"]
    by_machine: dict[tuple[str, bool, str], list[Target]] = {}
    for target in targets:
        if target.record.grade != "C":
            offloads = target.scenario.recipe.offloads_something
            by_machine.setdefault((target.group, offloads, target.host), []).append(target)
    found: dict[tuple[str, bool], list[tuple[Floats, Floats]]] = {}
    for (group, offloads, host), mine in by_machine.items():
        problem = machine_problem("throughput", mine, fitted.without[group].offsets, host)
        if problem is not None and len(mine) > 1:
            found.setdefault((group, offloads), []).append(_with_each_anchor(problem, pull))
    return tuple(_gain(f"{group} (offload)" if offloads else group, pairs) for (group, offloads), pairs in found.items())


def _with_each_anchor(problem: Problem, pull: Pull) -> tuple[Floats, Floats]:
    """(absolute errors without an anchor, mean absolute error of the other rows for each choice of anchor)."""
    count = len(problem.targets)
    solution = solve(problem, _WEIGHT * np.eye(count), [pull] * count)
    before = np.abs(_printed(problem, problem.errors(np.zeros((1, len(problem.knobs))))))[0]
    others = ~np.eye(count, dtype=bool)
    after = np.abs(_printed(problem, solution.errors))
    return before, np.array([after[row, others[row]].mean() for row in range(count)])


def _printed(problem: Problem, errors: Floats) -> Floats:
    """Relative errors of the quantities as they were printed, from log errors of times: a rate is the inverse."""
    columns = [throughput_column(target.record) or "" for target in problem.targets]
    signs = np.array([-1.0 if column.endswith("_per_s") else 1.0 for column in columns])
    relative: Floats = np.expm1(errors * signs)
    return relative


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
