"""What was given about a search -> what it found, the same for ``plan search`` and for Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.api.calibration_choice import calibration_for
from planner.configs.launchers.fsdp_keys import Beside
from planner.domain.scenario import Scenario
from planner.errors import UsageError
from planner.intake.given.config_file import read_config_file
from planner.intake.given.fields import missing_fields, missing_text
from planner.intake.given.request_field import RequestField
from planner.searching.recipes.answer import QUANTITIES, FoundRecipes, Quantity
from planner.searching.recipes.attempt import DEFAULT_CONFIDENCE, Model
from planner.searching.recipes.choose import choose
from planner.searching.recipes.other_stack import best_other_stack
from planner.searching.recipes.pool import Pool
from planner.searching.recipes.solve import solve
from planner.searching.recipes.space import Space, read_choices

EXAMPLE = "plan search --model 8b --gpu 4090 --seq 2048"
_CONFIDENCE = RequestField("confidence", "number", "", low=0.5, high=1, below_high=True)
_TOP = RequestField("top", "integer", "", low=1, high=1_000)
_SOLVE = RequestField("solve", "choice", "", choices=QUANTITIES)
_GLOBAL_BATCH = RequestField("global_batch", "integer", "", low=1, high=1_000_000_000)


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How to search and answer, beside what the job is; numbers as they were typed."""

    config: str | None = None
    output_format: str = "human"
    calibration: str | None = None
    confidence: str | None = None
    top: str | None = None
    global_batch: str | None = None
    solve: str | None = None
    beyond_context: bool = False


def answer_search(flags: Mapping[str, object], options: SearchOptions) -> FoundRecipes:
    """Answer a search over everything that flags and a config file leave open; flags win.

    Raises:
        UsageError: something that was given cannot be used, or no model or no card was given.
        NotModelledError: understood, but no formula covers it.
    """
    if options.beyond_context and options.solve != "seq":
        raise UsageError(
            "--beyond-context belongs to --solve seq; a length that is said may be above the "
            "model's own anyway"
        )
    space = replace(_space(flags, options), beyond_context=options.beyond_context)
    confidence = (
        DEFAULT_CONFIDENCE if options.confidence is None else float(_CONFIDENCE.parse(options.confidence))
    )
    # Many ways of training: the best of each is enough to choose a stack by.
    top = (1 if "stack" in space.choices else 3) if options.top is None else int(_TOP.parse(options.top))

    quantity: Quantity | None = None if options.solve is None else _SOLVE.parse(options.solve)

    remarks: dict[str, None] = {}

    def model_for(scenario: Scenario) -> Model:
        choice = calibration_for(scenario, options.calibration)
        remarks.update(dict.fromkeys(choice.warnings))
        if choice.assumption is not None and choice.assumption.note:
            remarks[f"Calibration {choice.assumption.value}: {choice.assumption.note}."] = None
        return choice.model

    pool = Pool(space, confidence)
    answer = (
        choose(pool, model_for, top=top) if quantity is None else solve(pool, model_for, quantity, top=top)
    )
    if options.confidence is not None and not _chance_known(pool):
        raise UsageError(
            "--confidence asks for a chance, which no prediction has without a calibration; leave it out"
        )
    other = best_other_stack(pool, answer, model_for)
    return replace(answer, other_stack=other, notes=(*space.config.notes, *remarks, *answer.notes))


def _chance_known(pool: Pool) -> bool:
    """Whether any prediction has a chance to fit, or none for lack of a limit."""
    every = (tried.prediction for group in pool.by_training.values() for tried in group)
    return any(each.fits_probability is not None or each.memory.limit_bytes is None for each in every)


def _space(flags: Mapping[str, object], options: SearchOptions) -> Space:
    fixed, choices = read_choices(flags)
    global_batch = None if options.global_batch is None else int(_GLOBAL_BATCH.parse(options.global_batch))
    if options.config is None:
        space = Space(fixed, choices, global_batch=global_batch)
    else:
        read = read_config_file(options.config, beside=Beside(stack=str(fixed.get("stack") or "")))
        if global_batch is None and read.total_batch is not None:
            global_batch = read.total_batch[0]
        space = Space(fixed, choices, read, global_batch, options.config)
    if missing := missing_fields(space.is_given, ("model", "hardware")):
        raise UsageError(missing_text(missing, EXAMPLE, "--"))
    return space
