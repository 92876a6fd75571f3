"""The best recipes of a space: every one is estimated, those that fit are ranked,
and those that another beats are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from planner.domain.scenario import Scenario
from planner.errors import UsageError
from planner.intake.resolve import complete, look_up
from planner.searching.recipes.answer import FoundRecipes, answer_of
from planner.searching.recipes.attempt import Model, ModelFor, Tried, rank
from planner.searching.recipes.pool import Pool
from planner.searching.recipes.space import (
    MICRO_BATCHES,
    Option,
    OptionGroup,
    Space,
    TypedFlags,
    options_over,
    sizes,
)

# Room that differs by less than this share of the card is the same for choosing.
_SAME_ROOM = 0.05


def choose(pool: Pool, model_for: ModelFor, *, top: int = 3) -> FoundRecipes:
    """The ``top`` recipes of each way of training that fit, and of each kind of card at least the best one.

    ``model_for`` gives the calibration of a place.

    Raises:
        UsageError: nothing to try, or too much.
        RefusedCombinationError: every recipe breaks a rule.
        NotModelledError: no formula covers the model.
    """
    for options, model in all_options(pool, model_for, pool.space.places()):
        pool.explore(options, model, try_sizes)
    answer = answer_of(pool, lambda fitting: listed(fitting, top))
    return replace(answer, notes=(*answer.notes, *_steps_differ(answer), *_ends_at_most(pool.space, answer)))


def _ends_at_most(space: Space, answer: FoundRecipes) -> tuple[str, ...]:
    most = MICRO_BATCHES[-1]
    reached = any(
        tried.scenario.recipe.batch.micro_batch == most for group in answer.groups for tried in group.rows
    )
    note = f"No micro-batch above {most} was tried; --solve batch finds the largest that fits"
    return (f"{note}.",) if reached and not space.is_given("batch") else ()


def _steps_differ(answer: FoundRecipes) -> tuple[str, ...]:
    steps = {_samples_per_step(tried.scenario) for group in answer.groups for tried in group.rows}
    note = (
        "The recipes take different numbers of samples per optimizer step; --global-batch keeps it the same"
    )
    return (f"{note}.",) if len(steps) > 1 else ()


def _samples_per_step(scenario: Scenario) -> int:
    batch = scenario.recipe.batch
    return int(batch.micro_batch * batch.grad_accum * scenario.batches_at_once)


def try_sizes(pool: Pool, option: Option, model: Model) -> bool:
    """Estimate an option with every micro-batch until one does not fit; whether any fits."""
    fits = False
    for run in sizes(pool.space, option.found.hardware.world_size):
        for size in run:
            tried = pool.tries(option, model, size)
            fits = pool.fits(tried) or fits
            if tried is not None and (tried.is_too_large or tried.prediction.verdict == "does_not_fit"):
                break
    return fits


def all_options(
    pool: Pool, model_for: ModelFor, every: Iterable[TypedFlags]
) -> Iterator[tuple[OptionGroup, Model]]:
    """Options of ``every`` place, with the calibration of the place.

    Raises:
        UsageError: a global batch that no place can divide.
    """
    space, places = pool.space, []
    for place in every:
        pool.found = look_up(space.outline(place), like=pool.found)
        if any(sizes(space, pool.found.hardware.world_size)):
            places.append((place, pool.found))
        else:
            pool.left_out.append(
                f"{place.get('gpu')} is left out: the global batch cannot be divided over its GPUs."
            )
    if not places:
        raise UsageError(
            f"{space.global_batch_text} cannot be divided over the GPUs with these micro-batches and "
            "accumulations: say a multiple of their product, or other GPUs"
        )
    for place, found in places:
        model: Model | None = None
        for options in options_over(space, place, found):
            model = model or model_for(complete(space.outline(options.first[0].flags), found, force=True))
            yield options, model


def listed(fitting: list[Tried], top: int) -> tuple[Tried, ...]:
    """Of those that fit, what no other on the same GPUs beats in both time and room: the best of each,
    then the best of all.

    One place goes to the recipe that changes least of what the stack does by itself,
    where no other listed one is as plain.
    """
    fronts = [front(same) for same in by_place(fitting).values()]
    chosen = sorted((each[0] for each in fronts), key=rank)
    rest = sorted((tried for each in fronts for tried in each[1:]), key=rank)[: max(0, top - len(chosen))]
    plainest = min(fitting, key=lambda tried: (tried.n_changes, *rank(tried)))
    if plainest.n_changes < min(tried.n_changes for tried in (*chosen, *rest)) and len(chosen) < top:
        rest = [*rest[: top - len(chosen) - 1], plainest]
    return tuple(sorted([*chosen, *rest], key=rank))


def front(fitting: Iterable[Tried]) -> list[Tried]:
    """Best first, each roomier than all before it."""
    kept: list[Tried] = []
    for tried in sorted(fitting, key=rank):
        if not kept or tried.room > kept[-1].room + _SAME_ROOM:
            kept.append(tried)
    return kept


def by_place(fitting: Iterable[Tried]) -> dict[tuple[str, int, int], list[Tried]]:
    """Recipes by GPU and counts, in the order in which these were tried."""
    places: dict[tuple[str, int, int], list[Tried]] = {}
    for tried in fitting:
        places.setdefault(tried.place, []).append(tried)
    return places
