"""What a search found: for each way of training the recipes that fit,
or the nearest miss and by what it misses.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from planner.domain.prediction import Verdict
from planner.searching.levers import Lever, levers
from planner.searching.recipes.attempt import Tried, confirmed, rank, state_of
from planner.searching.recipes.pool import Pool, Training
from planner.searching.recipes.space import ASSUMED_SEQ_TOKENS, Space

Quantity = Literal["batch", "seq", "gpus"]
QUANTITIES: tuple[Quantity, ...] = ("batch", "seq", "gpus")
"""What can be solved for."""
Choice = Callable[[list[Tried]], tuple[Tried, ...]]
Settle = Callable[[Tried], Tried]
"""A recipe replayed, or another size in its place."""
"""Which of those that fit are listed, in which order."""
# The quick reading is off by a few percent, so that the nearest by it need not be the nearest.
_REPLAYED_MISSES = 3
# From what is closest to fitting to what is farthest from it.
_STATES: tuple[Verdict, ...] = ("fits", "uncertain", "no_verdict", "host_memory_short", "does_not_fit")


@dataclass(frozen=True, slots=True)
class RecipeGroup:
    """Recipes that train the same: those listed, best first,
    of ``n_fit`` that fit and ``n_tried`` that were estimated.

    Where none fits ``nearest`` is the one that comes closest; where every recipe breaks a rule ``refused``
    says which.  ``above``: the first recipe with the next larger value of what was solved for.
    """

    title: str
    rows: tuple[Tried, ...]
    n_fit: int
    n_tried: int
    nearest: Tried | None = None
    refused: str = ""
    above: Tried | None = None


@dataclass(frozen=True, slots=True)
class OtherStack:
    """A recipe under a stack that was not asked for, as it is by default,
    that beats what was ``found`` without offload.
    """

    tried: Tried
    found: Tried | None


@dataclass(frozen=True, slots=True)
class FoundRecipes:
    """What a search found.

    ``verdict`` is that of the best recipe; ``tried`` are the values of each setting of which several were
    tried.  Where nothing fits ``levers`` are the changes after which the nearest miss would.  ``solved``:
    what was solved for, if anything.  ``other_stack``: the best of the stacks that were not asked for, where
    it beats those that were.
    """

    groups: tuple[RecipeGroup, ...]
    verdict: Verdict
    n_fit: int
    n_tried: int
    n_refused: int
    confidence: float
    tried: tuple[tuple[str, tuple[str, ...]], ...]
    notes: tuple[str, ...] = ()
    levers: tuple[Lever, ...] = ()
    solved: Quantity | None = None
    other_stack: OtherStack | None = None


def answer_of(pool: Pool, choice: Choice, settle: Settle = confirmed) -> FoundRecipes:
    """What a pool of estimates says: the rows that ``choice`` takes of those that fit, or the nearest miss.

    ``settle`` replays a row.

    Raises:
        RefusedCombinationError: every recipe breaks a rule.
    """
    refused = [error for errors in pool.refusals.values() for error in errors]
    if not pool.n_tried and refused:
        raise refused[0]
    groups = tuple(
        sorted((_group(pool, training, choice, settle) for training in pool.by_training), key=place_of)
    )
    n_fit = sum(group.n_fit for group in groups)
    return FoundRecipes(
        groups=groups,
        verdict=_verdict(groups, pool.confidence),
        n_fit=n_fit,
        n_tried=pool.n_tried,
        n_refused=len(refused),
        confidence=pool.confidence,
        tried=values_tried(tried for group in pool.by_training.values() for tried in group),
        notes=(*_notes(pool.space), *pool.left_out),
        levers=() if n_fit else _levers(groups, pool.confidence),
    )


def place_of(group: RecipeGroup) -> tuple[int, bool, float]:
    """Order of ways of training: what fits without the host, then with it, then what does not;
    adapters before all weights.

    Among equals that with the cheapest or fastest recipe is first.
    """
    first = (group.rows or (group.nearest,))[0]
    full = first is not None and first.scenario.recipe.method == "full"
    if not group.rows:
        return 2, full, math.inf
    state = 1 if all(each.offloads for each in group.rows) else 0
    return state, full, rank(group.rows[0])[0]


def _notes(space: Space) -> tuple[str, ...]:
    if space.is_given("seq"):
        return ()
    return (f"No --seq is given: {ASSUMED_SEQ_TOKENS:,} tokens are taken, or the model's most.",)


def _levers(groups: tuple[RecipeGroup, ...], confidence: float) -> tuple[Lever, ...]:
    """What would make the nearest of all misses fit."""
    missed = (group.nearest for group in groups if group.nearest is not None)
    nearest = min(missed, key=lambda each: _distance(each, confidence))
    return tuple(lever for lever in levers(nearest.scenario, nearest.model) if lever.fits)


def _group(pool: Pool, training: Training, choice: Choice, settle: Settle) -> RecipeGroup:
    tried = pool.by_training[training]
    fitting = [each for each in tried if pool.fits(each)]
    title = pool.title_of(training)
    if not tried:
        return RecipeGroup(title, (), 0, 0, refused=str(pool.refusals[training][0]))
    if rows := _listed(pool, fitting, choice, settle):
        return RecipeGroup(title, rows, len(fitting), len(tried))
    return RecipeGroup(title, (), 0, len(tried), nearest=_nearest(tried, pool.confidence))


def _nearest(tried: list[Tried], confidence: float) -> Tried:
    """The nearest miss by its replay, of those that are nearest by the quick reading."""

    def distance(each: Tried) -> tuple[int, bool, float, float]:
        return _distance(each, confidence)

    return min(map(confirmed, heapq.nsmallest(_REPLAYED_MISSES, tried, key=distance)), key=distance)


def _listed(pool: Pool, fitting: list[Tried], choice: Choice, settle: Settle) -> tuple[Tried, ...]:
    """What ``choice`` takes of the recipes that fit, each replayed;
    one that then does not fit makes room for another.
    """
    while fitting:
        rows = choice(fitting)
        again = {id(tried): settle(tried) for tried in rows}
        missed = [id(tried) for tried in rows if not pool.fits(again[id(tried)])]
        if not missed:
            return tuple(again[id(tried)] for tried in rows)
        fitting[:] = [tried for tried in fitting if id(tried) not in missed]
    return ()


def _distance(tried: Tried, confidence: float) -> tuple[int, bool, float, float]:
    """How far a recipe is from fitting, by what it lacks; among equals the fastest is the nearest."""
    prediction, seconds = tried.prediction, tried.sample_s
    state, miss, lacks_both = state_of(prediction, confidence), -tried.room, False
    if state == "uncertain":
        miss = -(prediction.fits_probability or 0.0)
    elif state == "host_memory_short":
        miss = float(prediction.host.required_per_node_bytes)
        lacks_both = prediction.fits_probability is not None and prediction.fits_probability < confidence
    return _STATES.index(state), lacks_both, miss, math.inf if seconds is None else seconds


def _verdict(groups: Sequence[RecipeGroup], confidence: float) -> Verdict:
    """The best of what is shown, all of which is replayed: a quick reading may call a miss a fit."""
    shown = (tried for group in groups for tried in group.rows or (group.nearest,) if tried is not None)
    return min((state_of(tried.prediction, confidence) for tried in shown), key=_STATES.index)


def values_tried(every: Iterable[Tried]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Values of each setting of which more than one was estimated."""
    seen: dict[str, dict[str, None]] = {}
    for tried in every:
        recipe, batch = tried.scenario.recipe, tried.scenario.recipe.batch
        name, per_node, nodes = tried.place
        values = {
            "GPUs": f"{name}:{per_node}" + (f" x {nodes} nodes" if nodes > 1 else ""),
            "micro-batch": f"{batch.micro_batch}",
            "length": f"{batch.seq_len}",
            "checkpointing": "on" if recipe.gradient_checkpointing else "off",
            "attention": recipe.attention,
            "loss": recipe.loss,
            "optimizer": recipe.optimizer,
            "sharding": recipe.sharding.name,
            "offload": recipe.offload,
        }
        for setting, value in values.items():
            seen.setdefault(setting, {})[value] = None
    return tuple((setting, tuple(values)) for setting, values in seen.items() if len(values) > 1)
