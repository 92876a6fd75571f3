"""The largest size that fits, found with few questions, and settled by replays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from planner.errors import RefusedCombinationError
from planner.searching.recipes import settle as settling
from planner.searching.recipes.attempt import Tried
from planner.searching.recipes.pool import Pool
from planner.searching.recipes.settle import last_that_fits, settle
from tests.planner.searching.recipes.made import Answer, tried


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_the_last_place_that_fits_is_found_from_any_guess(count: int) -> None:
    """Every number of places that fit, every guess: the answer, and no question twice."""
    for n_fitting in range(count + 1):
        for guess in range(count):
            asked: list[int] = []

            def fits(place: int, most: int = n_fitting, asked: list[int] = asked) -> bool:
                asked.append(place)
                return place < most

            assert last_that_fits(fits, guess, count) == (n_fitting - 1 if n_fitting else None)
            assert len(asked) == len(set(asked))


def test_a_good_guess_needs_two_questions_and_a_bad_one_few() -> None:
    """Steps double, so that a thousand places are crossed in twenty questions."""
    asked: list[int] = []
    last_that_fits(lambda place: asked.append(place) or place <= 500, 500, 1000)
    assert asked == [500, 501]
    asked.clear()
    last_that_fits(lambda place: asked.append(place) or place <= 990, 0, 1000)
    assert len(asked) <= 20


def pool_of() -> Pool:
    """A pool in which a verdict is what it says."""
    fits = lambda each: each is not None and each.prediction.verdict == "fits"  # noqa: E731
    return cast("Pool", SimpleNamespace(space=None, fits=fits))


def of_batch(batch: int, need: float, fits: bool) -> Tried:
    """A recipe of this micro-batch whose states take 20 bytes."""
    verdict = "fits" if fits else "does_not_fit"
    return tried(Answer(need_bytes=need, state_bytes=20, verdict=verdict), flags={"batch": str(batch)})


def replayed(monkeypatch: pytest.MonkeyPatch, fitting: int, refused: tuple[int, ...] = ()) -> list[int]:
    """Replays say that batches up to ``fitting`` fit; returns what is asked."""
    asked: list[int] = []

    def attempt(_: Any, option: Any, __: Any, more: dict[str, str], *, quick: bool) -> Any:
        assert not quick
        batch = int(more["batch"])
        asked.append(batch)
        if batch in refused:
            return RefusedCombinationError("no")
        return of_batch(batch, 10.0 * batch, batch <= fitting)

    monkeypatch.setattr(settling, "attempt", attempt)
    return asked


def test_a_replay_that_needs_more_scales_the_size_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 bytes beside the states were meant, and 80 are needed: half of 8 is asked about first."""
    asked = replayed(monkeypatch, fitting=4)
    quick, again = of_batch(8, 60, fits=True), of_batch(8, 100, fits=False)
    found = settle(pool_of(), quick, again, "batch", (1, 2, 3, 4, 5, 6, 7, 8))
    assert asked[0] == 4
    assert found.found.flags == {"batch": "4"}
    assert found.above is not None
    assert found.above.flags == {"batch": "5"}


def test_what_was_replayed_is_not_replayed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as was meant: the size itself, which is known, and the next one."""
    asked = replayed(monkeypatch, fitting=2)
    again = of_batch(2, 60, fits=True)
    found = settle(pool_of(), of_batch(2, 60, fits=True), again, "batch", (1, 2, 3, 4))
    assert (found.found, asked) == (again, [3])


def test_nothing_above_the_largest_value_and_nothing_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last value has no next one; where none fits the one that was asked for is told."""
    replayed(monkeypatch, fitting=9)
    again = of_batch(4, 60, fits=True)
    found = settle(pool_of(), again, again, "batch", (1, 2, 4))
    assert (found.found, found.above) == (again, None)
    replayed(monkeypatch, fitting=0)
    missed = of_batch(4, 60, fits=False)
    found = settle(pool_of(), missed, missed, "batch", (1, 2, 4))
    assert (found.found, found.above) == (missed, None)


def test_a_size_that_a_rule_refuses_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there is no recipe of the next value either."""
    replayed(monkeypatch, fitting=4, refused=(3, 4))
    again = of_batch(2, 60, fits=True)
    found = settle(pool_of(), again, again, "batch", (1, 2, 3, 4))
    assert (found.found, found.above) == (again, None)
