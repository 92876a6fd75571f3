"""What one measured row of a machine does for the rest of its document, which no fit below it saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from planner.calibration.fit.calibrate import Fitted
from planner.calibration.fit.personal import OWN_WEIGHT
from planner.calibration.fit.problem import Problem, machine_problem
from planner.calibration.fit.screen import screen
from planner.calibration.fit.solver import solve
from planner.calibration.fit.targets import Floats, Target, targets_of
from planner.calibration.score.rows import throughput_column
from planner.domain.run_record import RunRecord


@dataclass(frozen=True, slots=True)
class AnchorGain:
    """What one measured row of a held-out group does for the others: mean absolute errors,
    the median over the choice of row.

    ``before``: by the calibration without the group; ``after``: with one row of it as an anchor.  Fractions.
    """

    group: str
    n_rows: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Timed rows of one document's machine; those that offload apart, as their times have other causes."""

    group: str
    offloads: bool
    host: str
    targets: tuple[Target, ...]

    @property
    def title(self) -> str:
        """The group, and whether these are its rows that offload."""
        return f"{self.group} (offload)" if self.offloads else self.group


def machines_of(records: Sequence[RunRecord]) -> tuple[Machine, ...]:
    """Machines with at least two timed rows of a known configuration;
    the machine of a row is its group and GPU.
    """
    found: dict[tuple[str, bool, str], list[Target]] = {}
    for record, scenario in screen(records).used:
        for target in targets_of(record, scenario):
            if target.quantity == "throughput" and target.record.grade != "C":
                found.setdefault((target.group, scenario.recipe.offloads_something, target.host), []).append(
                    target
                )
    return tuple(Machine(*key, tuple(targets)) for key, targets in found.items() if len(targets) > 1)


def anchor_gains(fitted: Fitted, records: Sequence[RunRecord]) -> tuple[AnchorGain, ...]:
    """For each group with timed rows, the gain in throughput of one anchor row, which is not scored itself.

    An anchor helps only the rows of its own machine.
    """
    found: dict[str, list[tuple[Floats, Floats]]] = {}
    for each in machines_of(records):
        problem = machine_problem("throughput", each.targets, fitted.without[each.group].offsets, each.host)
        if problem is not None:
            found.setdefault(each.title, []).append(_with_each_anchor(problem))
    return tuple(_gain(title, pairs) for title, pairs in found.items())


def _with_each_anchor(problem: Problem) -> tuple[Floats, Floats]:
    """(absolute errors without an anchor,
    mean absolute error of the other rows for each choice of anchor).
    """
    count = len(problem.targets)
    solution = solve(problem, OWN_WEIGHT * np.eye(count))
    before = np.abs(_printed(problem, problem.errors(np.zeros((1, len(problem.knobs))))))[0]
    others = ~np.eye(count, dtype=bool)
    after = np.abs(_printed(problem, solution.errors))
    return before, np.array([after[row, others[row]].mean() for row in range(count)])


def _printed(problem: Problem, errors: Floats) -> Floats:
    """Relative errors of the quantities as they were printed, from log errors of times:
    a rate is the inverse.
    """
    columns = [throughput_column(target.record) or "" for target in problem.targets]
    signs = np.array([-1.0 if column.endswith("_per_s") else 1.0 for column in columns])
    relative: Floats = np.expm1(errors * signs)
    return relative


def _gain(group: str, pairs: Sequence[tuple[Floats, Floats]]) -> AnchorGain:
    before = np.concatenate([pair[0] for pair in pairs])
    after = np.concatenate([pair[1] for pair in pairs])
    return AnchorGain(group, len(before), float(before.mean()), float(median(after)))
