"""What is allocated at the fullest moment of each phase,
for a grid of jobs whose steps differ in sizes alone.

Each moment is a sum over units: so many bytes for each token, for each pair of token and key, and so on.
Most moments take no more than another one wherever the numbers of units may lie, so they are never the
fullest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.arrays import maximum
from planner.domain.recipes.recipe import Number
from planner.domain.term import Phase
from planner.program.ops.tensors import Unit
from planner.program.request_stream import RequestStream

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

UNITS = tuple(Unit)


def phase_bytes(stream: RequestStream, values: Mapping[Unit, Number]) -> dict[Phase, Number]:
    """Most bytes allocated at once in each phase, with what is there when it begins,
    where there are ``values`` of each unit.
    """
    counts = [values[unit] for unit in UNITS]
    low, high = (np.array([float(end(each)) for each in counts]) for end in (np.min, np.max))
    levels, fullest = _levels(stream)
    bounds = [*(begin for begin, _ in stream.phases), len(levels)]
    found: dict[Phase, Number] = {}
    for (begin, phase), end in zip(stream.phases, bounds[1:], strict=True):
        places = fullest[np.searchsorted(fullest, begin) : np.searchsorted(fullest, end)]
        rows = levels[[max(begin - 1, 0), *places, max(end - 1, 0)]]
        found[phase] = maximum(
            found.get(phase, 0), *(_total(row, counts) for row in _least_rows(rows, low, high))
        )
    return found


def state_bytes(stream: RequestStream, values: Mapping[Unit, Number]) -> Number:
    """Bytes of weights and states when the step ends."""
    states = stream.state_slots()
    units = np.array([stream.units[slot] for slot in states], dtype=np.int64)
    row: Floats = np.bincount(units, [stream.unit_bytes[slot] for slot in states], len(UNITS)).astype(
        np.float64
    )
    return _total(row, [values[unit] for unit in UNITS])


def _total(row: Floats, counts: list[Number]) -> Number:
    found: Number = 0
    for n_bytes, count in zip(row.tolist(), counts, strict=True):
        if n_bytes:
            found = found + n_bytes * count
    return found


def _levels(stream: RequestStream) -> tuple[Floats, Any]:
    """Bytes of each unit after every event, [events, units],
    and the events that are allocations before a free.
    """
    events = np.array(stream.events)
    made = events >= 0
    slots = np.where(made, events, ~events)
    changes = np.zeros((len(events), len(UNITS)))
    signed: Any = np.where(made, 1.0, -1.0)
    changes[np.arange(len(events)), np.array(stream.units, dtype=np.int64)[slots]] = (
        np.array(stream.unit_bytes)[slots] * signed
    )
    np.cumsum(changes, axis=0, out=changes)
    return changes, np.flatnonzero(made & ~np.append(made[1:], [False]))


def _least_rows(table: Floats, low: Floats, high: Floats) -> list[Floats]:
    """The rows that may be the largest where the number of each unit lies anywhere between ``low`` and
    ``high``.
    """
    kept: list[Floats] = []
    left = table[np.argsort(-(table @ np.sqrt(np.maximum(low * high, 1.0))), kind="stable")]
    while len(left):
        first, left = left[0], left[1:]
        kept.append(first)
        ahead = first - left
        left = left[np.maximum(ahead, 0) @ low + np.minimum(ahead, 0) @ high < 0]
    return kept
