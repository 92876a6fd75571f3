"""What a pool of estimates says: the rows that are listed, the order of ways of training, what was tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import RefusedCombinationError
from planner.searching.recipes.answer import RecipeGroup, answer_of, place_of
from planner.searching.recipes.attempt import Tried
from planner.searching.recipes.pool import Pool, Training
from planner.searching.recipes.space import Option, Space
from tests.planner.report.prediction import made


def recipe(batch: int, *, rate: float = 8.0, method: str = "lora", fits: bool = True) -> Tried:
    """A recipe of this micro-batch and speed."""
    asked, said = made.scenario(), made.prediction()
    batches = replace(asked.recipe.batch, micro_batch=batch)
    asked = replace(asked, recipe=replace(asked.recipe, batch=batches, method=cast("Any", method)))
    assert said.time is not None
    said = replace(
        said, time=replace(said.time, samples_per_s=rate), verdict="fits" if fits else "does_not_fit"
    )
    return Tried({}, asked, lambda: said, 0, Coefficients(), Option({}, cast("Any", None), 0))


def pool(**tried: list[Tried]) -> Pool:
    """Estimates by method, with a length that was given."""
    by_training: dict[Training, list[Tried]] = {(("method", name),): found for name, found in tried.items()}
    return Pool(Space({"seq": "512"}, {}), by_training=by_training, n_tried=sum(map(len, tried.values())))


def first_two(fitting: list[Tried]) -> tuple[Tried, ...]:
    """A choice."""
    return tuple(fitting[:2])


def test_a_row_that_does_not_fit_when_replayed_makes_room() -> None:
    """The quick reading may call a miss a fit; the next one is listed in its place."""
    rows = [recipe(8), recipe(4), recipe(4)]
    miss = replace(rows[0], answer=recipe(8, fits=False).answer)
    found = answer_of(pool(lora=rows), first_two, lambda each: miss if each is rows[0] else each)
    (group,) = found.groups
    assert group.rows == (rows[1], rows[2])
    assert (group.n_fit, group.n_tried, found.n_fit, found.verdict) == (2, 3, 2, "fits")
    assert found.tried == (("micro-batch", ("8", "4")),)


def test_ways_of_training_stand_in_order() -> None:
    """Without the host before with it, adapters before all weights, misses last; among equals the fastest."""
    slow, fast = recipe(1, rate=1.0), recipe(1, rate=9.0)
    full, moved = recipe(1, method="full"), replace(recipe(1, rate=99.0), offloads=True)
    groups = [
        RecipeGroup("slow", (slow,), 1, 1),
        RecipeGroup("missed", (), 0, 1, nearest=fast),
        RecipeGroup("moved", (moved,), 1, 1),
        RecipeGroup("full", (full,), 1, 1),
        RecipeGroup("refused", (), 0, 0, refused="a rule"),
        RecipeGroup("fast", (moved, fast), 2, 2),
    ]
    titles = [group.title for group in sorted(groups, key=place_of)]
    assert titles == ["fast", "slow", "full", "moved", "missed", "refused"]


def test_a_rule_is_the_answer_where_nothing_else_is() -> None:
    """Beside recipes it is that of its own group."""
    rule = RefusedCombinationError("no such kernel")
    refused = pool(qlora=[])
    refused.refusals[("method", "qlora"),] = [rule]
    with pytest.raises(RefusedCombinationError, match="no such kernel"):
        answer_of(refused, first_two, lambda each: each)
    both = pool(qlora=[], lora=[recipe(2)])
    both.refusals[("method", "qlora"),] = [rule]
    found = answer_of(both, first_two, lambda each: each)
    assert [(group.title, group.refused) for group in found.groups] == [
        ("lora on nf4", ""),
        ("qlora", "no such kernel"),
    ]
    assert (found.n_refused, found.levers) == (1, ())


@pytest.mark.parametrize(("given", "count"), [({}, 1), ({"seq": "512"}, 0)])
def test_a_length_that_nobody_gave_is_told(given: dict[str, str | bool], count: int) -> None:
    """2,048 tokens are taken."""
    asked = replace(pool(lora=[recipe(2)]), space=Space(given, {}))
    notes = answer_of(asked, first_two, lambda each: each).notes
    assert len(notes) == count
    assert all("2,048" in note for note in notes)
