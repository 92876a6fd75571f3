"""The best of the common stacks that a search was not asked for, where that one beats what was found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.errors import PlannerError
from planner.searching.common_stacks import COMMON_STACKS
from planner.searching.recipes.answer import FoundRecipes, OtherStack
from planner.searching.recipes.attempt import ModelFor, Tried, confirmed, rank
from planner.searching.recipes.choose import all_options, try_sizes
from planner.searching.recipes.pool import Explorer, Pool
from planner.searching.recipes.solve import explorer_of, size_of

# A stack that is better by less is not worth the change.
_WORTH_SHARE = 0.02


def best_other_stack(pool: Pool, answer: FoundRecipes, model_for: ModelFor) -> OtherStack | None:
    """The common stack under which the first way of training that gains by it gains most;
    ``None`` where none does.

    Each stack is taken as it is by default, without offload that it does not do by itself.  Nothing is tried
    where a stack was given, or anything about versions and switches, which belong to one.
    """
    if any(map(pool.space.is_given, ("stack", "versions", "switches"))) or answer.solved == "gpus":
        return None
    explorer = try_sizes if answer.solved is None else explorer_of(pool, answer.solved)
    assumed = {tried.scenario.stack.id for tried in _all(pool)}
    others = list(
        _explored(pool, model_for, explorer, [name for name in COMMON_STACKS if name not in assumed])
    )
    for group in answer.groups:
        alike = sorted(
            (tried for title, tried in others if title == group.title),
            key=lambda tried: _order(tried, answer),
        )
        mine = min(
            (tried for tried in group.rows if not tried.offloads),
            key=lambda tried: _order(tried, answer),
            default=None,
        )
        better = (tried for tried in alike if mine is None or _beats(tried, mine, answer))
        best = next((again for again in map(confirmed, better) if pool.fits(again)), None)
        if best is not None:
            return OtherStack(best, mine)
    return None


def _all(pool: Pool) -> Iterator[Tried]:
    return (tried for group in pool.by_training.values() for tried in group)


def _explored(
    pool: Pool, model_for: ModelFor, explorer: Explorer, names: list[str]
) -> Iterator[tuple[str, Tried]]:
    """What fits under each stack as it is by default, with the title of its way of training."""
    for name in names:
        space = replace(pool.space, fixed={**pool.space.fixed, "stack": name})
        other = Pool(space, pool.confidence, found=pool.found)
        try:
            for options, model in all_options(other, model_for, space.places()):
                if options.first:
                    explorer(other, options.first[0], model)
        except PlannerError:
            # What this stack refuses is no better.
            continue
        for training, tried in other.by_training.items():
            title = other.title_of(training)
            yield from ((title, each) for each in tried if other.fits(each))


def _order(tried: Tried, answer: FoundRecipes) -> tuple[float, ...]:
    if answer.solved is None:
        return rank(tried)
    return -float(size_of(answer.solved)(tried)), *rank(tried)


def _beats(best: Tried, mine: Tried, answer: FoundRecipes) -> bool:
    if answer.solved is not None:
        size = size_of(answer.solved)
        return float(size(best)) > (1 + _WORTH_SHARE) * float(size(mine))
    costs = [(each.sample_s if each.sample_usd is None else each.sample_usd) for each in (best, mine)]
    return costs[0] is not None and costs[1] is not None and costs[0] < (1 - _WORTH_SHARE) * costs[1]
