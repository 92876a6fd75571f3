"""A least-squares problem over named coefficients: readings, free numbers,
and their linearisation for many fits at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from planner.calibration.fit.targets import NOISE, Floats, Quantity, Target, log_errors
from planner.domain.uncertainty.calibration import Knob, Offset
from planner.domain.uncertainty.hierarchy import FREEDOM

# All readings of a group together count as this many independent ones: errors inside a document are of one
# kind, and a long table must not drown a short one.  Of times more: with 4, sources that are left out are
# predicted worse.
READINGS_PER_GROUP: Mapping[Quantity, float] = {"memory": 4.0, "throughput": 10.0, "host_memory": 4.0}
_GROUPS_TO_SHARE = 2
_PROBE = 2.0
_STEP = 0.1
_NEGLIGIBLE = 1e-6


@dataclass(frozen=True, slots=True)
class Problem:
    """Readings of one quantity and the free numbers they depend on, one for each coefficient.

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
    def noise(self) -> float:
        """One standard deviation of a log reading; see :data:`planner.calibration.fit.targets.NOISE`."""
        return NOISE[self.quantity]

    def offsets(self, points: Floats) -> Floats:
        """Offsets of the knobs at the points ``z``."""
        moved: Floats = self.spread * points
        return moved

    def fitted(self, point: Floats, spread: Floats) -> tuple[Offset, ...]:
        """The knobs at one point, each with one standard deviation of it, in prior spreads."""
        triples = zip(self.knobs, self.offsets(point), self.offsets(spread), strict=True)
        return tuple(Offset(knob, float(value), float(deviation)) for knob, value, deviation in triples)

    def errors(self, points: Floats) -> Floats:
        """Log errors of every reading (columns) at every point (rows)."""
        offsets = self.offsets(points)
        found = [
            log_errors(target, self._totals(active, offsets), len(points))
            for target, active in zip(self.targets, self.active, strict=True)
        ]
        return np.stack(found, axis=1)

    def linearise(self, points: Floats) -> tuple[Floats, Floats]:
        """Log errors (points x readings) and their slopes by ``z`` (points x readings x knobs),
        by forward differences.

        The step is a tenth of a spread, so that kinks of maxima are averaged over.
        """
        n_points, n_knobs = points.shape
        errors = np.zeros((n_points, len(self.targets)))
        slopes = np.zeros((n_points, len(self.targets), n_knobs))
        offsets = self.offsets(points)
        for row, (target, active) in enumerate(zip(self.targets, self.active, strict=True)):
            totals = self._totals(active, offsets)
            stepped = {name: np.tile(total, (1 + len(active), 1)) for name, total in totals.items()}
            for place, column in enumerate(active, start=1):
                stepped[self.knobs[column].coefficient][place] += _STEP * self.spread[column]
            flat = {name: each.ravel() for name, each in stepped.items()}
            values = log_errors(target, flat, (1 + len(active)) * n_points).reshape(-1, n_points)
            errors[:, row] = values[0]
            slopes[:, row, active] = ((values[1:] - values[0]) / _STEP).T
        return errors, slopes

    def _totals(self, active: npt.NDArray[np.intp], offsets: Floats) -> dict[str, Floats]:
        """For each coefficient that moves a reading, the sum of its offsets at every point."""
        totals = {each.knob.coefficient: np.full(len(offsets), each.offset) for each in self.base}
        for column in active:
            name = self.knobs[column].coefficient
            totals[name] = totals.get(name, np.zeros(len(offsets))) + offsets[:, column]
        return totals

    def weights(self) -> Floats:
        """Weight of each squared residual: by grade, and at most :data:`READINGS_PER_GROUP` for a group."""
        most = READINGS_PER_GROUP[self.quantity]
        raw = np.array([target.weight for target in self.targets])
        names = [target.group for target in self.targets]
        for group in self.groups:
            mine = np.array([name == group for name in names])
            raw[mine] *= min(most, raw[mine].sum()) / raw[mine].sum()
        return raw


def make_problem(quantity: Quantity, targets: Sequence[Target], free: Collection[str]) -> Problem | None:
    """The problem of the readings of one quantity, with ``free`` coefficients.

    ``None`` where there is no reading.  A coefficient gets an offset where readings of two groups
    depend on it.  Where none does, the problem has no free number: its readings are still held out, and make
    intervals.
    """
    mine = tuple(target for target in targets if target.quantity == quantity)
    if not mine:
        return None
    reach = _reach(mine, [name for name, freedom in FREEDOM.items() if freedom.spread and name in free])
    groups = np.array([target.group for target in mine])
    knobs = [
        Knob(name) for name, far in reach.items() if len(set(groups[far > _NEGLIGIBLE])) >= _GROUPS_TO_SHARE
    ]
    return _problem(quantity, mine, knobs, reach)


def machine_problem(
    quantity: Quantity, targets: Sequence[Target], base: Sequence[Offset], machine: str
) -> Problem | None:
    """The problem of one machine on top of an earlier fit:
    an offset of its own for each coefficient that its readings depend on.

    ``None`` where it has no such reading.  All ``targets`` are taken to be of the machine.
    """
    mine = tuple(target for target in targets if target.quantity == quantity)
    reach = _reach(mine, FREEDOM)
    knobs = [Knob(name, "host", machine) for name, far in reach.items() if np.any(far > _NEGLIGIBLE)]
    return replace(_problem(quantity, mine, knobs, reach), base=tuple(base)) if knobs else None


def _problem(
    quantity: Quantity, mine: tuple[Target, ...], knobs: Sequence[Knob], reach: Mapping[str, Floats]
) -> Problem:
    far = np.array([reach[knob.coefficient] for knob in knobs]).reshape(len(knobs), len(mine))
    active = tuple(np.flatnonzero(each > _NEGLIGIBLE) for each in far.T)
    return Problem(quantity, mine, tuple(knobs), np.array([knob.spread for knob in knobs]), active)


def _reach(mine: Sequence[Target], names: Collection[str]) -> dict[str, Floats]:
    """For each coefficient how far two spreads of it, up or down, move the logarithm of each prediction."""
    steps = np.diag([_PROBE * (FREEDOM[name].spread or FREEDOM[name].machine) for name in names])
    probes = np.vstack([np.zeros((1, len(names))), steps, -steps])
    offsets = dict(zip(names, probes.T, strict=True))
    moved = np.array([log_errors(each, offsets, len(probes)) for each in mine]).reshape(-1, len(probes))
    far = np.abs(moved[:, 1:] - moved[:, :1])
    return {name: np.maximum(far[:, i], far[:, i + len(names)]) for i, name in enumerate(names)}
