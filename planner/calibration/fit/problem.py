"""A least-squares problem over named coefficients: readings, free numbers,
and their linearisation for many fits at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from planner.calibration.fit.targets import NOISE, Floats, Quantity, Target, log_errors
from planner.domain.uncertainty.calibration import Knob, Offset, applies
from planner.domain.uncertainty.hierarchy import FREEDOM

# All readings of a group together count as this many independent ones: errors inside a document are of one
# kind, and a long table must not drown a short one.  Where each machine has effects of its own, what is left
# of its readings is less of one kind.
READINGS_PER_GROUP: Mapping[Quantity, float] = {"memory": 4.0, "throughput": 10.0, "host_memory": 4.0}
# A number that all share is freed where two spreads of it move readings of at least two groups by more than
# this.
_MATTERS: Mapping[Quantity, float] = {"memory": 1e-6, "throughput": 0.06, "host_memory": 1e-6}
_MACHINE_MATTERS = 0.1
_GROUPS_TO_SHARE = 2
_PROBE = 2.0
_STEP = 0.1
_NEGLIGIBLE = 1e-6


@dataclass(frozen=True, slots=True)
class Problem:
    """Readings of one quantity and the free numbers they depend on.

    A fit works on ``z = offset / spread``, whose prior is the standard normal.  ``active`` gives, for each
    reading, the columns of the knobs that move it.  ``base``: offsets of an earlier fit that stay.
    """

    quantity: Quantity
    targets: tuple[Target, ...]
    knobs: tuple[Knob, ...]
    spread: Floats
    active: tuple[npt.NDArray[np.intp], ...]
    base: tuple[Offset, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that are held out together, in order of appearance."""
        return tuple(dict.fromkeys(target.group for target in self.targets))

    @property
    def is_shared(self) -> npt.NDArray[np.bool_]:
        """For each knob, whether other machines share it;
        the rest only keep one machine's oddities out of what is shared.
        """
        return np.array([knob.level != "host" for knob in self.knobs], dtype=bool)

    @property
    def noise(self) -> float:
        """One standard deviation of a log reading; see :data:`planner.calibration.fit.targets.NOISE`."""
        return NOISE[self.quantity]

    def offsets(self, points: Floats) -> Floats:
        """Offsets of the knobs at the points ``z``."""
        moved: Floats = self.spread * points
        return moved

    def errors(self, points: Floats) -> Floats:
        """Log errors of every reading (columns) at every point (rows)."""
        offsets, no_offset = self.offsets(points), np.zeros(len(points))
        found = []
        for target, active in zip(self.targets, self.active, strict=True):
            totals = self._totals(target, active, offsets)
            found.append(
                log_errors(target, tuple(map(Knob, totals)), np.stack([*totals.values(), no_offset], axis=1))
            )
        return np.stack(found, axis=1)

    def linearise(self, points: Floats) -> tuple[Floats, Floats]:
        """Log errors (points x readings) and their slopes by ``z`` (points x readings x knobs),
        by forward differences.

        The step is a tenth of a spread, so that kinks of maxima are averaged over.  Knobs of one coefficient
        add up, so each reading is evaluated once for each coefficient, at all points together.
        """
        n_points, n_knobs = points.shape
        errors = np.zeros((n_points, len(self.targets)))
        slopes = np.zeros((n_points, len(self.targets), n_knobs))
        offsets = self.offsets(points)
        for row, (target, active) in enumerate(zip(self.targets, self.active, strict=True)):
            totals = self._totals(target, active, offsets)
            names = list(totals)
            columns = {name: [c for c in active if self.knobs[c].coefficient == name] for name in names}
            steps = np.array(
                [_STEP * max((self.spread[c] for c in columns[name]), default=0.0) for name in names]
            )
            stacked = np.repeat(
                np.stack([*totals.values(), np.zeros(n_points)], axis=1)[None], 1 + len(names), axis=0
            )
            for index in range(len(names)):
                stacked[1 + index, :, index] += steps[index]
            values = log_errors(target, tuple(map(Knob, names)), stacked.reshape(-1, len(names) + 1))
            values = values.reshape(1 + len(names), n_points)
            errors[:, row] = values[0]
            for index, name in enumerate(names):
                for column in columns[name]:
                    slopes[:, row, column] = (
                        (values[1 + index] - values[0]) / steps[index] * self.spread[column]
                    )
        return errors, slopes

    def _totals(self, target: Target, active: npt.NDArray[np.intp], offsets: Floats) -> dict[str, Floats]:
        """For each coefficient that moves the reading, the sum of its offsets at every point."""
        totals: dict[str, Floats] = {}
        for each in self.base:
            if applies(each.knob, target.scenario, target.host):
                known = totals.setdefault(each.knob.coefficient, np.zeros(len(offsets)))
                totals[each.knob.coefficient] = known + each.offset
        for column in active:
            name = self.knobs[column].coefficient
            totals[name] = totals.get(name, np.zeros(len(offsets))) + offsets[:, column]
        return totals

    def weights(self, per_group: float | None = None) -> Floats:
        """Weight of each squared residual: by grade,
        and at most ``per_group`` (:data:`READINGS_PER_GROUP`) for a group.
        """
        most = READINGS_PER_GROUP[self.quantity] if per_group is None else per_group
        raw = np.array([target.weight for target in self.targets])
        names = [target.group for target in self.targets]
        for group in self.groups:
            mine = np.array([name == group for name in names])
            raw[mine] *= min(most, raw[mine].sum()) / raw[mine].sum()
        return raw

    def only(self, columns: Sequence[int], base: Sequence[Offset]) -> Problem:
        """The problem of some of the knobs, with the offsets of others as they are."""
        place = {column: index for index, column in enumerate(columns)}
        active = tuple(
            np.array([place[c] for c in each if c in place], dtype=np.intp) for each in self.active
        )
        knobs = tuple(self.knobs[column] for column in columns)
        return replace(self, knobs=knobs, spread=self.spread[list(columns)], active=active, base=tuple(base))


def make_problem(quantity: Quantity, targets: Sequence[Target], shared: Collection[str]) -> Problem | None:
    """The problem of the readings of one quantity, with ``shared`` coefficients free.

    ``None`` where there is no reading.  A coefficient gets an offset where readings of two groups
    depend on it.  Where none does, the problem has no free number: its readings are still held out, and make
    intervals.  Each machine also has effects of its own, which the fit integrates out.  They keep what is odd
    about one machine out of what all share; no prediction for another machine uses them.
    """
    mine = tuple(target for target in targets if target.quantity == quantity)
    if not mine:
        return None
    reach = _reach(mine)
    knobs = [knob for knob in _shared_knobs(quantity, mine, reach) if knob.coefficient in shared]
    return _problem(quantity, mine, (*knobs, *_machine_knobs(mine, reach)), reach)


def machine_problem(
    quantity: Quantity, targets: Sequence[Target], base: Sequence[Offset], machine: str
) -> Problem | None:
    """The problem of one machine on top of an earlier fit:
    an offset of its own for each coefficient that its readings depend on.

    ``None`` where it has no such reading.  All ``targets`` are taken to be of the machine.
    """
    mine = tuple(replace(target, machine=machine) for target in targets if target.quantity == quantity)
    reach = _reach(mine)
    own = {
        name
        for name, freedom in FREEDOM.items()
        if (freedom.machine or freedom.spread) and np.any(reach[name] > _NEGLIGIBLE)
    }
    knobs = tuple(Knob(name, "host", machine) for name in FREEDOM if name in own)
    return replace(_problem(quantity, mine, knobs, reach), base=tuple(base)) if knobs else None


def _problem(
    quantity: Quantity, mine: tuple[Target, ...], knobs: tuple[Knob, ...], reach: Mapping[str, Floats]
) -> Problem:
    def moves(knob: Knob, row: int, target: Target) -> bool:
        return bool(reach[knob.coefficient][row] > _NEGLIGIBLE) and applies(
            knob, target.scenario, target.host
        )

    active = tuple(
        np.flatnonzero([moves(knob, row, target) for knob in knobs]) for row, target in enumerate(mine)
    )
    return Problem(quantity, mine, knobs, np.array([knob.spread for knob in knobs]), active)


def _reach(mine: Sequence[Target]) -> dict[str, Floats]:
    """For each coefficient how far two spreads of it, up or down, move the logarithm of each prediction."""
    knobs = tuple(map(Knob, FREEDOM))
    steps = np.diag([_PROBE * (freedom.spread or freedom.machine) for freedom in FREEDOM.values()])
    probes = np.vstack([np.zeros(len(knobs)), steps, -steps])
    moved = np.array([log_errors(target, knobs, probes) for target in mine]).reshape(len(mine), len(probes))
    far = np.abs(moved[:, 1:] - moved[:, :1])
    return {name: np.maximum(far[:, i], far[:, i + len(knobs)]) for i, name in enumerate(FREEDOM)}


def _shared_knobs(quantity: Quantity, mine: Sequence[Target], reach: Mapping[str, Floats]) -> list[Knob]:
    groups = np.array([target.group for target in mine])
    least = min(_GROUPS_TO_SHARE, len(set(groups)))
    return [
        Knob(name)
        for name, freedom in FREEDOM.items()
        if freedom.spread and len(set(groups[reach[name] > _MATTERS[quantity]])) >= least
    ]


def _machine_knobs(mine: Sequence[Target], reach: Mapping[str, Floats]) -> list[Knob]:
    machines = np.array([target.host for target in mine])
    return [
        Knob(name, "host", machine)
        for machine in dict.fromkeys(machines.tolist())
        for name, freedom in FREEDOM.items()
        if freedom.machine and np.any(reach[name][machines == machine] > _MACHINE_MATTERS)
    ]
