"""What the operators of a micro-step cost, read from the step program:
the same for all jobs that differ in sizes alone.

Each count is so much for each token, each pair of a query and a key, and so on,
so that one reading answers a grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from planner.arrays import distinct, minimum, where
from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import Batch, Number, Recipe
from planner.domain.recipes.rollout import Rollout
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.supported import lacks_flash2
from planner.program.head.roles import Role
from planner.program.job import Job, generation_job, job_of
from planner.program.ops.sizes import batch_units
from planner.program.ops.tensors import Unit
from planner.program.ops.work import Direction, FusedAttention, Kind, Share
from planner.program.runtime import Part
from planner.program.step import asides_of, evaluation_of, generation_of, parts_of
from planner.throughput.tokens import MicroStep

Place = Literal["model", "head", "tower"]
Pass = Literal["training", "aside", "evaluation", "prompts", "token"]
"""``aside``: all that train nothing; ``prompts`` and one more ``token``: those that generate."""
SCORES = (Unit.PAIRS, Unit.SINK_PAIRS)
"""Units of scores of attention."""
_TOWER_PARTS = ("vision layer", "projector")
_TOWER_UNITS = (
    Unit.PATCHES,
    Unit.RANK_PATCHES,
    Unit.IMAGE_PATCHES,
    Unit.PATCH_PAIRS,
    Unit.PATCH_SQUARES,
    Unit.CUT_TOKENS,
    Unit.LINE_TOKENS,
)


@dataclass(frozen=True, slots=True)
class Cost:
    """So much of one kind of work for each of a unit, and where the operators are that do it."""

    place: Place
    direction: Direction
    share: Share
    kind: Kind
    unit: Unit
    amount: float


@dataclass(frozen=True, slots=True)
class Counted:
    """All costs of one micro-step or pass.

    ``modules``: calls of modules in a forward pass, each of which may have hooks.  ``asked``: forward passes
    of language models among what trains nothing.
    """

    costs: tuple[Cost, ...]
    modules: int
    asked: float = 0

    @property
    def reaches_tower(self) -> bool:
        """Whether gradients reach the layers of a vision tower, whose attention is fused."""
        scores = (each for each in self.costs if isinstance(each.kind, FusedAttention))
        return any(each.place == "tower" and each.direction == "backward" for each in scores)


@dataclass(frozen=True, slots=True)
class _Structure:
    """Everything about a job that decides its operators; ``scenario`` is one that has them.

    ``lacks_flash``: whether the card runs no FlashAttention, so that torch takes another kernel.
    """

    model: ModelSpec
    stack: Stack
    recipe: Recipe
    passes: Pass
    lacks_flash: bool
    scenario: Scenario = field(compare=False)


def by_structure(
    scenario: Scenario, micro: MicroStep, passes: Pass, read: Callable[[Counted], dict[str, Number]]
) -> dict[str, Number]:
    """What ``read`` makes of the costs, by name; on a grid of the costs that each of its points has."""
    windows = scenario.model.windows
    is_one = (scenario.recipe.batch.micro_batch == 1) | scenario.stack.joins_rows(scenario.recipe)
    flags: list[Any] = [is_one, micro.has_mask]
    flags += [micro.length >= window for window in windows]
    code: Any = 0
    for flag in flags:
        code = code * 2 + flag
    found: dict[str, Number] = {}
    for number in distinct(code):
        held = [bool(number >> bit & 1) for bit in reversed(range(len(flags)))]
        made = read(_counted(_structure(scenario, passes, held, windows)))
        for name, value in made.items():
            found[name] = where(code == number, value, found.get(name, 0.0))
        for name in found.keys() - made.keys():
            found[name] = where(code == number, 0.0, found[name])
    return found


def unit_values(scenario: Scenario, micro: MicroStep) -> dict[Unit, Number]:
    """The number of each unit in a micro-step of mean size;
    pairs of tokens grow with the square of a length that varies.

    Source: the variance of ``micro.length``.
    """
    tokens, length = micro.computed, micro.length
    pairs = tokens * length * (1 + micro.spread**2)
    units = batch_units(scenario, tokens, length, pairs)
    return units | {
        Unit.PIECE_TOKENS: tokens / units[Unit.PIECES],
        Unit.COMPLETION_TOKENS: tokens * scored_share(scenario.recipe),
        # What was cached is counted as a whole, where the passes that generate are.
        Unit.CACHED_TOKENS: 0,
        Unit.WINDOW_TOKENS: 0,
    }


def scored_share(recipe: Recipe) -> Number:
    """Share of the tokens whose logits are made: those of completions, where these were generated.

    Source: trl 1.16.0 trainer/grpo_trainer.py (``logits_to_keep``).
    """
    if recipe.rollout is None or recipe.task == "ppo":
        return 1.0
    return minimum(recipe.rollout.completion_tokens / recipe.batch.seq_len, 1.0)


def _structure(scenario: Scenario, passes: Pass, flags: list[bool], windows: tuple[int, ...]) -> _Structure:
    """The job of the smallest sizes that have the same ``flags``: one sample or pair, a padding mask,
    and each window reached.
    """
    single, masked, *reached = flags
    length = max([window for window, each in zip(windows, reached, strict=True) if each], default=2)
    recipe, batch = scenario.recipe, scenario.recipe.batch
    # As many micro-steps as a completion is trained on, so that what is asked about it stays the same.
    n_micro = recipe.rollout.iterations if recipe.rollout else 1
    plain = Batch(1 if single else 2, n_micro, length, "max_length", 1 if masked else length)
    recipe = replace(
        recipe,
        batch=replace(plain, is_paired=batch.is_paired, images=batch.images, parts=batch.parts),
        rollout=_shortest(recipe),
        adapter=replace(recipe.adapter, rank=1) if recipe.adapter else None,
    )
    lacks_flash = lacks_flash2(scenario.hardware.gpu)
    scenario = replace(scenario, recipe=recipe)
    return _Structure(scenario.model, scenario.stack, recipe, passes, lacks_flash, scenario)


def _shortest(recipe: Recipe) -> Rollout | None:
    """A generation of one token that asks about its completions where that of ``recipe`` does."""
    if recipe.rollout is None:
        return None
    return replace(recipe.rollout, completion_tokens=1, micro_steps=1 + int(recipe.asks_old))


@lru_cache(maxsize=1024)
def _counted(structure: _Structure) -> Counted:
    job, passes = job_of(structure.scenario, Coefficients()), structure.passes
    if passes == "training":
        return _sum_of(parts_of(job))
    if passes in ("prompts", "token"):
        # Another program has weights of 16 bits, as the job's products are.
        own = job.recipe.rollout is not None and job.recipe.rollout.generator == "transformers"
        role: Role = "token" if passes == "token" else "prompt"
        return _sum_of(evaluation_of(generation_job(job) if own else job, role))
    asides, scores, times = _asides(job)
    evaluated = evaluation_of(job) if passes == "evaluation" else ()
    beside = [(part, times) for parts in (*asides, scores) for part in parts]
    return replace(_sum_of(evaluated, beside), asked=times * len(asides))


def _asides(job: Job) -> tuple[Sequence[list[Part]], Sequence[Part], float]:
    """The passes that train nothing, that of a reward model, and how often each micro-step runs them:
    those over what was generated run once, however often that is trained on.
    """
    rollout, generation = job.recipe.rollout, generation_of(job)
    if rollout is not None and generation is not None:
        compared = (list(generation.reference),) if generation.reference else ()
        return (*generation.asides, *compared), generation.scores, 1 / rollout.iterations
    before, after = asides_of(job)
    return (*before, *after), (), 1.0


def _sum_of(parts: Iterable[Part], asides: Iterable[tuple[Part, float]] = ()) -> Counted:
    sums: dict[tuple[Place, Direction, Share, Kind, Unit], float] = {}
    modules = 0
    for part, times in (*((part, 1.0) for part in parts), *asides):
        template = part.template
        modules += part.count * sum(mark.moment == "before_forward" for _, mark in template.marks["forward"])
        for (direction, share, kind), counts in template.work.items():
            for unit, amount in counts.items():
                key = (_place(part.name, unit), direction, share, kind, unit)
                sums[key] = sums.get(key, 0.0) + part.count * times * amount
    return Counted(tuple(Cost(*key, amount) for key, amount in sums.items()), modules)


def _place(name: str, unit: Unit) -> Place:
    if name in _TOWER_PARTS or unit in _TOWER_UNITS:
        return "tower"
    return "head" if name == "head" else "model"
