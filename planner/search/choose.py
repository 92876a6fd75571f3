"""The best recipes of a space: every one is estimated, those that fit are ranked, and those that another beats are left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from planner.domain.prediction import Verdict
from planner.domain.scenario import Scenario
from planner.errors import RefusedCombinationError, UsageError
from planner.intake.resolve import complete, look_up
from planner.search.attempt import DEFAULT_CONFIDENCE, Model, ModelFor, Tried, accepted, attempt
from planner.search.explain import Change, changes_that_fit
from planner.search.space import ASSUMED_SEQ_TOKENS, Option, Options, Said, Space, options_over, sizes

# Estimates an option with sizes of its choosing; says whether any fits.
Explorer = Callable[["Pool", Option, Model], bool]

Quantity = Literal["batch", "seq", "gpus"]
Training = tuple[tuple[str, str], ...]
QUANTITIES: tuple[Quantity, ...] = ("batch", "seq", "gpus")
MAX_ESTIMATES = 20_000
# Times that differ by less are the same for choosing, and so is room of less than this share of the card.
_SAME_TIME = math.log(1.01)
_SAME_ROOM = 0.05
# What trains something else, so that recipes with and without it are not ranked against each other.
_TRAININGS = ("method", "quantization", "precision", "load_dtype", "adapter_dtype", "seq", "padding", "lora_rank")


@dataclass(frozen=True, slots=True)
class Group:
    """Recipes that train the same: those listed, best first, of ``n_fit`` that fit and ``n_tried`` that were estimated.

    Where none fits ``nearest`` is the one that comes closest; where every recipe breaks a rule ``refused`` says which.
    ``above``: the first recipe with the next larger value of what was solved for.
    """

    title: str
    rows: tuple[Tried, ...]
    n_fit: int
    n_tried: int
    nearest: Tried | None = None
    refused: str = ""
    above: Tried | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search found.

    ``verdict`` is that of the best recipe; ``tried`` are the values of each setting of which several were tried.  Where nothing
    fits ``changes`` are those after which the nearest miss would.  ``solved``: what was solved for, if anything.
    """

    groups: tuple[Group, ...]
    verdict: Verdict
    n_fit: int
    n_tried: int
    n_refused: int
    confidence: float
    tried: tuple[tuple[str, tuple[str, ...]], ...]
    notes: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    solved: Quantity | None = None


@dataclass(slots=True)
class Pool:
    """Every estimate of a search, by what it trains."""

    space: Space
    confidence: float = DEFAULT_CONFIDENCE
    by_training: dict[Training, list[Tried]] = field(default_factory=dict)
    refusals: dict[Training, list[RefusedCombinationError]] = field(default_factory=dict)
    n_tried: int = 0

    def tries(self, option: Option, model: Model, more: Said) -> Tried | None:
        """Estimate one recipe and keep it; ``None`` where a rule refuses it.

        Raises:
            UsageError: too many estimates.
        """
        answer = attempt(self.space, option, model, more)
        key = self.training_of(option.flags)
        self.by_training.setdefault(key, [])
        if not isinstance(answer, Tried):
            self.refusals.setdefault(key, []).append(answer)
            return None
        self.n_tried += 1
        if self.n_tried > MAX_ESTIMATES:
            raise UsageError(f"more than {MAX_ESTIMATES:,} recipes to estimate: give fewer choices to the flags")
        self.by_training[key].append(answer)
        return answer

    def explore(self, options: Options, model: Model, explorer: Explorer) -> Literal["first", "offloading", "none"]:
        """Explore each option, those that offload only where no other fits; where the first that fits was found."""
        if any([explorer(self, option, model) for option in options.first]):  # noqa: C419, each one is explored
            return "first"
        if any([explorer(self, option, model) for option in options.offloading]):  # noqa: C419
            return "offloading"
        return "none"

    def fits(self, tried: Tried | None) -> bool:
        """Whether a recipe counts as fitting."""
        return tried is not None and accepted(tried.prediction, self.confidence)

    def training_of(self, flags: Said) -> Training:
        """What a recipe trains: the settings that tell ways of training apart, with their values."""
        named = [name for name in _TRAININGS if name == "method" or name in self.space.choices]
        typed = {**{name: str(self.space.config.get(name)) for name in named}, **flags}
        return tuple((name, str(typed[name])) for name in named)


def choose(pool: Pool, model_for: ModelFor, *, top: int = 3) -> Answer:
    """The ``top`` recipes of each way of training that fit, and of each kind of card at least the best one.

    ``model_for`` gives the calibration of a place.

    Raises:
        UsageError: nothing to try, or too much.
        RefusedCombinationError: every recipe breaks a rule.
        NotModelledError: no formula covers the model.
    """
    for options, model in all_options(pool.space, model_for, pool.space.places()):
        pool.explore(options, model, try_sizes)
    answer = answer_of(pool, lambda fitting: listed(fitting, top))
    return replace(answer, notes=(*answer.notes, *_steps_differ(answer)))


def _steps_differ(answer: Answer) -> tuple[str, ...]:
    steps = {_samples_per_step(tried.scenario) for group in answer.groups for tried in group.rows}
    said = "The recipes take different numbers of samples per optimizer step; --global-batch keeps it the same"
    return (f"{said}.",) if len(steps) > 1 else ()


def _samples_per_step(scenario: Scenario) -> int:
    batch = scenario.recipe.batch
    return int(batch.micro_batch * batch.grad_accum) * scenario.hardware.world_size


def try_sizes(pool: Pool, option: Option, model: Model) -> bool:
    """Estimate an option with every micro-batch until one does not fit; whether any fits."""
    fits = False
    for run in sizes(pool.space, option.found.hardware.world_size):
        for size in run:
            tried = pool.tries(option, model, size)
            fits = pool.fits(tried) or fits
            if tried is not None and tried.prediction.verdict == "does_not_fit":
                break
    return fits


def all_options(space: Space, model_for: ModelFor, every: Iterable[Said]) -> Iterator[tuple[Options, Model]]:
    """Options of ``every`` place, with the calibration of the place.

    Raises:
        UsageError: a global batch that no place can divide.
    """
    places = [(place, look_up(space.request(place))) for place in every]
    if not any(map(any, (sizes(space, found.hardware.world_size) for _, found in places))):
        raise UsageError(
            f"--global-batch {space.global_batch} cannot be divided over the GPUs with these micro-batches and accumulations"
        )
    for place, found in places:
        model: Model | None = None
        for options in options_over(space, place, found):
            model = model or model_for(complete(space.request(options.first[0].flags), found, force=True))
            yield options, model


def answer_of(pool: Pool, choice: Callable[[list[Tried]], tuple[Tried, ...]]) -> Answer:
    """What a pool of estimates says: the rows that ``choice`` takes of those that fit, or the nearest miss.

    Raises:
        RefusedCombinationError: every recipe breaks a rule.
    """
    refused = [error for errors in pool.refusals.values() for error in errors]
    if not pool.n_tried and refused:
        raise refused[0]
    groups = tuple(_group(pool, training, choice) for training in pool.by_training)
    n_fit = sum(group.n_fit for group in groups)
    return Answer(
        groups=groups,
        verdict=_verdict(pool),
        n_fit=n_fit,
        n_tried=pool.n_tried,
        n_refused=len(refused),
        confidence=pool.confidence,
        tried=_values_tried(tried for group in pool.by_training.values() for tried in group),
        notes=_notes(pool.space),
        changes=() if n_fit else _changes(groups),
    )


def _notes(space: Space) -> tuple[str, ...]:
    if space.said("seq"):
        return ()
    return (f"No length was said: {ASSUMED_SEQ_TOKENS:,} tokens are taken, or the model's most; say --seq.",)


def _changes(groups: tuple[Group, ...]) -> tuple[Change, ...]:
    """What would make the nearest of all misses fit."""
    nearest = min((group.nearest for group in groups if group.nearest is not None), key=_distance)
    return tuple(change for change in changes_that_fit(nearest.scenario, nearest.model) if change.fits)


def _group(pool: Pool, training: Training, choice: Callable[[list[Tried]], tuple[Tried, ...]]) -> Group:
    tried = pool.by_training[training]
    fitting = [each for each in tried if pool.fits(each)]
    title = ", ".join(value if name == "method" else f"{name.replace('_', ' ')} {value}" for name, value in training)
    if not tried:
        return Group(title, (), 0, 0, refused=str(pool.refusals[training][0]))
    if fitting:
        return Group(title, choice(fitting), len(fitting), len(tried))
    return Group(title, (), 0, len(tried), nearest=min(tried, key=_distance))


def _distance(tried: Tried) -> tuple[bool, float, float]:
    """How far a recipe is from fitting: host RAM last, then what is short of the card; among equals the fastest."""
    prediction, seconds = tried.prediction, tried.sample_s
    return prediction.verdict == "host_memory_short", -tried.room, math.inf if seconds is None else seconds


def _verdict(pool: Pool) -> Verdict:
    """The best that was seen; a recipe that is less sure than was asked for is uncertain."""
    every = [tried for group in pool.by_training.values() for tried in group]
    if any(pool.fits(tried) for tried in every):
        return "fits"
    seen = {"uncertain" if tried.prediction.verdict == "fits" else tried.prediction.verdict for tried in every}
    order: tuple[Verdict, ...] = ("uncertain", "no_verdict", "host_memory_short", "does_not_fit")
    return next(verdict for verdict in order if verdict in seen)


def rank(tried: Tried) -> tuple[float, int, float, float]:
    """Best first: the cheapest sample where prices are known, else the fastest; of equals the plainest, then the roomiest."""
    effort = tried.sample_s if tried.sample_usd is None else tried.sample_usd
    if effort is None:
        return math.inf, tried.n_changes, -tried.room, math.inf
    return round(math.log(effort) / _SAME_TIME), tried.n_changes, -tried.room, effort


def listed(fitting: list[Tried], top: int) -> tuple[Tried, ...]:
    """Of those that fit, what no other on the same GPUs beats in both time and room: the best of each, then the best of all.

    The last place goes to the recipe that changes least of what the stack does by itself, where no other listed one is as plain.
    """
    fronts = [front(same) for same in by_place(fitting).values()]
    chosen = sorted((each[0] for each in fronts), key=rank)
    rest = sorted((tried for each in fronts for tried in each[1:]), key=rank)[: max(0, top - len(chosen))]
    plainest = min(fitting, key=lambda tried: (tried.n_changes, *rank(tried)))
    if rest and plainest.n_changes < min(tried.n_changes for tried in (*chosen, *rest)):
        rest[-1] = plainest
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


def _values_tried(every: Iterable[Tried]) -> tuple[tuple[str, tuple[str, ...]], ...]:
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
            "sharding": recipe.sharding,
            "offload": recipe.offload,
        }
        for setting, value in values.items():
            seen.setdefault(setting, {})[value] = None
    return tuple((setting, tuple(values)) for setting, values in seen.items() if len(values) > 1)
