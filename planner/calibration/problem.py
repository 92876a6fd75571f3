"""A least-squares problem over named coefficients: readings, free numbers, and their linearisation for many fits at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from planner.calibration.targets import NOISE, Floats, Quantity, Target, log_errors
from planner.domain.calibration import Knob, Offset, applies
from planner.domain.hierarchy import FREEDOM, Level

# A key of a level gets a number of its own only where this many readings depend on it.
MIN_READINGS_PER_LEVEL = 6
MIN_READINGS_PER_HOST = 2
# All readings of a group together count as this many independent ones: errors inside a document are of one kind, and a long table
# must not drown a short one.
READINGS_PER_GROUP = 4.0
_PROBE = 2.0
_STEP = 0.1
_NEGLIGIBLE = 1e-6


@dataclass(frozen=True, slots=True)
class Problem:
    """Readings of one quantity and the free numbers they depend on.

    ``centre`` and ``spread`` are the prior of each knob's offset; a fit works on ``z = (offset - centre) / spread``.  ``active``
    gives, for each reading, the columns of the knobs that move it.  ``base``: offsets of an earlier fit that stay.
    """

    quantity: Quantity
    targets: tuple[Target, ...]
    knobs: tuple[Knob, ...]
    centre: Floats
    spread: Floats
    active: tuple[npt.NDArray[np.intp], ...]
    base: tuple[Offset, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that are held out together, in order of appearance."""
        return tuple(dict.fromkeys(target.group for target in self.targets))

    @property
    def is_shared(self) -> npt.NDArray[np.bool_]:
        """For each knob, whether other machines share it; the rest only keep one machine's oddities out of what is shared."""
        return np.array([knob.level != "host" for knob in self.knobs])

    @property
    def noise(self) -> float:
        """One standard deviation of a log reading; see :data:`planner.calibration.targets.NOISE`."""
        return NOISE[self.quantity]

    def offsets(self, points: Floats) -> Floats:
        """Offsets of the knobs at the points ``z``."""
        moved: Floats = self.centre + self.spread * points
        return moved

    def errors(self, points: Floats) -> Floats:
        """Log errors of every reading (columns) at every point (rows)."""
        offsets = self.offsets(points)
        return np.stack([log_errors(target, self.knobs, offsets, self.base) for target in self.targets], axis=1)

    def linearise(self, points: Floats) -> tuple[Floats, Floats]:
        """Log errors (points x readings) and their slopes by ``z`` (points x readings x knobs), by forward differences.

        The step is a tenth of a prior's spread, so that kinks of maxima are averaged over; each reading is evaluated once for all
        points and all knobs that move it.
        """
        n_points, n_knobs = points.shape
        errors = np.zeros((n_points, len(self.targets)))
        slopes = np.zeros((n_points, len(self.targets), n_knobs))
        for row, (target, active) in enumerate(zip(self.targets, self.active, strict=True)):
            stacked = np.repeat(points[None, :, :], 1 + len(active), axis=0)
            for index, column in enumerate(active, start=1):
                stacked[index, :, column] += _STEP
            values = log_errors(target, self.knobs, self.offsets(stacked.reshape(-1, n_knobs)), self.base)
            values = values.reshape(1 + len(active), n_points)
            errors[:, row] = values[0]
            slopes[:, row, active] = ((values[1:] - values[0]) / _STEP).T
        return errors, slopes

    def weights(self) -> Floats:
        """Weight of each squared residual: by grade, and the same total for every group with enough readings."""
        raw = np.array([target.weight for target in self.targets])
        names = [target.group for target in self.targets]
        for group in self.groups:
            mine = np.array([name == group for name in names])
            raw[mine] *= min(READINGS_PER_GROUP, raw[mine].sum()) / raw[mine].sum()
        return raw


def make_problem(quantity: Quantity, targets: Sequence[Target], room: int) -> Problem | None:
    """The problem of the readings of one quantity with at most ``room`` free numbers; ``None`` where nothing can be fitted.

    A coefficient is freed for all where a reading depends on it, and for a key of its levels where
    ``MIN_READINGS_PER_LEVEL`` readings of the key depend on it and another key does, too: else the level says nothing.
    """
    mine = tuple(target for target in targets if target.quantity == quantity)
    names = list(FREEDOM)
    moves = np.array([_dependence(target, names) for target in mine]).reshape(len(mine), len(names))
    moved_by = {name: [mine[i] for i in np.flatnonzero(moves[:, column])] for column, name in enumerate(names)}
    shared = [Knob(name) for name, moved in moved_by.items() if moved]
    levels = sorted(chain.from_iterable(_level_knobs(name, moved) for name, moved in moved_by.items()), key=lambda pair: -pair[0])
    knobs = tuple((shared + [knob for _, knob in levels])[:room])
    if not knobs:
        return None
    columns = [names.index(knob.coefficient) for knob in knobs]
    active = tuple(
        np.flatnonzero(
            [
                moves[row, column] and applies(knob, target.scenario, target.host)
                for knob, column in zip(knobs, columns, strict=True)
            ]
        )
        for row, target in enumerate(mine)
    )
    spread = np.array([knob.spread for knob in knobs])
    return Problem(quantity, mine, knobs, np.zeros(len(knobs)), spread, active)


def machine_problem(quantity: Quantity, targets: Sequence[Target], base: Sequence[Offset], machine: str) -> Problem | None:
    """The problem of one machine on top of an earlier fit: an offset of its own for each coefficient that its readings depend on.

    ``None`` where it has no such reading.  All ``targets`` are taken to be of the machine.
    """
    mine = tuple(replace(target, machine=machine) for target in targets if target.quantity == quantity)
    names = list(FREEDOM)
    moves = np.array([_dependence(target, names) for target in mine]).reshape(len(mine), len(names))
    columns = np.flatnonzero(moves.any(axis=0))
    if not len(columns):
        return None
    knobs = tuple(Knob(names[column], "host", machine) for column in columns)
    active = tuple(np.flatnonzero(row[columns]) for row in moves)
    spread = np.array([knob.spread for knob in knobs])
    return Problem(quantity, mine, knobs, np.zeros(len(knobs)), spread, active, tuple(base))


def _dependence(target: Target, names: Sequence[str]) -> list[bool]:
    """For each coefficient, whether the reading moves with it, two spreads up or down."""
    knobs = tuple(Knob(name) for name in names)
    steps = np.diag([_PROBE * knob.spread for knob in knobs])
    errors = log_errors(target, knobs, np.vstack([np.zeros(len(knobs)), steps, -steps]))
    up, down = np.abs(errors[1 : len(names) + 1] - errors[0]), np.abs(errors[len(names) + 1 :] - errors[0])
    return [bool(moved > _NEGLIGIBLE) for moved in np.maximum(up, down)]


def _level_knobs(name: str, moved: Sequence[Target]) -> list[tuple[int, Knob]]:
    """(readings, knob) of each key that can be told apart."""
    found: list[tuple[int, Knob]] = []
    for level in FREEDOM[name].levels:
        counts = _key_counts(level, moved)
        if len(counts) > 1:
            least = MIN_READINGS_PER_HOST if level == "host" else MIN_READINGS_PER_LEVEL
            found += [(n, Knob(name, level, key)) for key, n in counts.items() if key and n >= least]
    return found


def _key_counts(level: Level, moved: Sequence[Target]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for target in moved:
        key = target.key(level)
        counts[key] = counts.get(key, 0) + 1
    return counts
