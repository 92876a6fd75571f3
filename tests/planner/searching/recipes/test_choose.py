"""Which recipes are listed of those that fit, and with which sizes an option is tried."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.searching.recipes.attempt import Tried
from planner.searching.recipes.choose import by_place, front, listed, try_sizes
from planner.searching.recipes.pool import Pool
from planner.searching.recipes.space import MICRO_BATCHES, Option, Space
from tests.planner.searching.recipes.made import Answer, tried


def recipe(rate: float, need: float, *, card: str = "x", n_changes: int = 1) -> Tried:
    """A recipe of so many samples in a second that needs so many percent of its card."""
    return tried(Answer(samples_per_s=rate, need_bytes=need), card=card, n_changes=n_changes)


def test_what_another_beats_in_time_and_room_is_left_out() -> None:
    """Each next one is slower, and has at least 5 % of the card more room."""
    fast, slow, slower, slowest = recipe(8, 90), recipe(4, 70), recipe(2, 66), recipe(1, 40)
    assert front([slowest, slower, slow, fast]) == [fast, slow, slowest]
    assert front([]) == []


def test_the_best_of_each_card_is_listed_before_the_second_best_of_any() -> None:
    """Three places: two for cards, and the last for the roomier one of the first card."""
    fast, roomy, other = recipe(8, 90), recipe(4, 20), recipe(1, 50, card="y")
    assert listed([roomy, other, fast], 3) == (fast, roomy, other)
    assert listed([roomy, other, fast], 2) == (fast, other)
    assert listed([roomy, other, fast], 1) == (fast, other)


def test_one_place_goes_to_what_changes_least() -> None:
    """It would not be listed for its time or room; where a listed one is as plain, it is not."""
    fast, roomy, roomiest = recipe(8, 90), recipe(4, 50), recipe(2, 10)
    plain = recipe(1, 95, n_changes=0)
    assert listed([fast, roomy, roomiest, plain], 3) == (fast, roomy, plain)
    as_plain = recipe(8, 90, n_changes=0)
    assert plain not in listed([as_plain, roomy, roomiest, plain], 3)
    assert listed([fast, plain], 1) == (fast,)


def test_places_are_cards_and_counts() -> None:
    """In the order in which they were tried."""
    first, second = recipe(1, 1, card="b"), recipe(2, 1, card="a")
    again, two = recipe(3, 1, card="b"), tried(gpus=2, card="b")
    assert list(by_place([first, second, again, two]).items()) == [
        (("b", 1, 1), [first, again]),
        (("a", 1, 1), [second]),
        (("b", 2, 1), [two]),
    ]


class Asked:
    """A pool that remembers what it was asked; batches up to ``fitting`` fit, some are refused."""

    def __init__(self, space: Space, fitting: int, refused: tuple[int, ...] = ()) -> None:
        self.space, self._fitting, self._refused = space, fitting, refused
        self.batches: list[int] = []

    def tries(self, _: Option, __: object, more: dict[str, str]) -> Tried | None:
        """As the real one."""
        batch = int(more["batch"])
        self.batches.append(batch)
        if batch in self._refused:
            return None
        return tried(Answer(verdict="fits" if batch <= self._fitting else "does_not_fit"))

    def fits(self, found: Tried | None) -> bool:
        """As the real one."""
        return found is not None and found.prediction.verdict == "fits"


OPTION = Option({}, cast("Any", SimpleNamespace(hardware=SimpleNamespace(world_size=1))), 0)


@pytest.mark.parametrize(
    ("fitting", "refused", "asked", "fits"),
    [
        (4, (), [1, 2, 4, 8], True),
        (0, (), [1], False),
        (64, (), [*MICRO_BATCHES], True),
        (4, (1, 2), [1, 2, 4, 8], True),
    ],
)
def test_batches_grow_until_one_does_not_fit(
    fitting: int, refused: tuple[int, ...], asked: list[int], fits: bool
) -> None:
    """A rule that refuses one size says nothing about the next."""
    pool = Asked(Space({}, {}), fitting, refused)
    assert try_sizes(cast("Pool", pool), OPTION, Coefficients()) is fits
    assert pool.batches == asked


def test_each_accumulation_begins_with_the_smallest_batch() -> None:
    """What does not fit with one accumulation ends that run alone."""
    pool = Asked(Space({}, {"batch": ("8", "2"), "grad_accum": ("1", "4")}), fitting=2)
    assert try_sizes(cast("Pool", pool), OPTION, Coefficients())
    assert pool.batches == [2, 8, 2, 8]
