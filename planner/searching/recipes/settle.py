"""The largest size that fits when steps are replayed: a search estimates quickly,
and what it shows is settled here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from planner.searching.recipes.answer import Quantity
from planner.searching.recipes.attempt import Tried, attempt
from planner.searching.recipes.pool import Pool


@dataclass(frozen=True, slots=True)
class Settled:
    """The largest that was found to fit, or what was asked for where none does; ``above``:
    the next one, which does not.
    """

    found: Tried
    above: Tried | None


def settle(pool: Pool, quick: Tried, again: Tried, quantity: Quantity, values: Sequence[int]) -> Settled:
    """Replay others of ``values`` than that of ``quick``, which is ``again`` when it is replayed."""
    value, option = int(str(quick.flags[quantity])), replace(quick.option, flags=quick.flags)
    known: dict[int, Tried | None] = {value: again}

    def tried(place: int) -> Tried | None:
        asked = values[place]
        if asked not in known:
            answer = attempt(pool.space, option, quick.model, {quantity: str(asked)}, quick=False)
            known[asked] = answer if isinstance(answer, Tried) else None
        return known[asked]

    place = max(bisect_right(values, value * _share_that_fits(quick, again)) - 1, 0)
    most = last_that_fits(lambda each: pool.fits(tried(each)), place, len(values))
    found = None if most is None else tried(most)
    above = None if most is None or most + 1 == len(values) else tried(most + 1)
    return Settled(found or again, above)


def last_that_fits(fits: Callable[[int], bool], guess: int, count: int) -> int | None:
    """A place below ``count`` that fits before one that does not, near ``guess``;
    steps double until they pass it.
    """
    low, high, place, step = -1, count, guess, 1
    while high - low > 1:
        low, high = (place, high) if fits(place) else (low, place)
        if low >= 0 and high < count:
            place = (low + high) // 2
        else:
            place = max(high - step, 0) if low < 0 else min(low + step, count - 1)
            step *= 2
    return low if low >= 0 else None


def _share_that_fits(quick: Tried, again: Tried) -> float:
    """By how much to scale what comes and goes, so that a replay needs what the quick estimate said."""
    states = float(again.prediction.memory.state_bytes)
    meant, needed = quick.need_bytes - states, again.need_bytes - states
    return max(meant, 0.0) / needed if needed > 0 else 1.0
