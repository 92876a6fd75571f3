"""What a job needs under each common software stack, with that stack's own defaults."""

from __future__ import annotations

from dataclasses import dataclass

from planner.catalog.stacks import load_stack
from planner.domain.prediction import Verdict
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.calibration import Calibration
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError, RefusedCombinationError
from planner.intake.supported import code_lacks, has_sinks, lacks_flash2
from planner.predicting import PRIORS, predict_with
from planner.searching.common_stacks import COMMON_STACKS, runs_sharding, stack_is_open
from planner.searching.variants import refusals, request_of, with_flags

_USUAL = {"gradient_checkpointing": "checkpointing", "padding": "packing", "attention": "flash attention"}


@dataclass(frozen=True, slots=True)
class StackNeed:
    """What the job needs under one common stack with its own defaults.

    ``need_bytes``: what one GPU needs at least; ``peak_bytes``: what the driver shows.  ``lacks``: settings
    that the examples of that tool set and its bare defaults lack here.
    """

    stack: str
    need_bytes: int
    peak_bytes: int
    verdict: Verdict
    fits_probability: float | None
    lacks: tuple[str, ...] = ()


def stack_needs(scenario: Scenario, model: Coefficients | Calibration = PRIORS) -> tuple[StackNeed, ...]:
    """What the job needs under each common stack with its own defaults; nothing where the stack was given."""
    if not stack_is_open(scenario):
        return ()
    found = []
    for name in COMMON_STACKS:
        if not runs_sharding(name, scenario.recipe.sharding):
            continue
        stack = scenario.stack if name == scenario.stack.id else load_stack(name)
        try:
            after = with_flags(scenario, {}, stack=stack)
            if refusals(after).keys() - refusals(scenario).keys():
                continue
            prediction = predict_with(after, model)
        except (RefusedCombinationError, NotModelledError):
            continue
        memory = prediction.memory
        need, peak = round(float(memory.must_have_bytes)), round(float(memory.driver_peak_bytes))
        short = name.partition("@")[0]
        found.append(
            StackNeed(short, need, peak, prediction.verdict, prediction.fits_probability, _lacks(after))
        )
    return tuple(found)


def _lacks(scenario: Scenario) -> tuple[str, ...]:
    """Usual settings of the stack's examples that are neither given nor there by default."""
    recipe, given = scenario.recipe, request_of(scenario).values
    taken = {
        "gradient_checkpointing": recipe.gradient_checkpointing,
        "padding": recipe.batch.padding,
        "attention": recipe.attention,
    }
    gpu, model, stack = scenario.hardware.gpu, scenario.model, scenario.stack
    possible = (
        {**_USUAL}
        if not (lacks_flash2(gpu) or has_sinks(model) or code_lacks(model, stack, "flash2"))
        else {**_USUAL, "attention": ""}
    )
    lacking = (
        possible.get(name) for name, value in stack.usual if name not in given and taken.get(name) != value
    )
    return tuple(name for name in lacking if name)
