"""A job whose architecture no program describes -> bounds of its memory, where its modules can be counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from planner.anatomy.adapted_matrices import is_adapted
from planner.api.measure_process import run_measure
from planner.catalog.described import Description
from planner.catalog.hf_config import in_checkpoint_dtype, model_from_config
from planner.catalog.unmodelled import Range, read_ranges, training_of
from planner.domain.model import ModelSpec
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError, PlannerError, UnknownArchitectureError
from planner.intake.given.request import Given, ScenarioRequest, merge
from planner.intake.resolve import resolve
from planner.memory.bounds import bounds_of, plain_decoder
from planner.program.job import job_of
from planner.report.bounds.bounded import Bounded

_TIMEOUT_S = 120.0
_NEEDED = ("measure", "torch", "transformers", "peft", "accelerate")
_TASKS = ("sft", "pretrain")
_QUANTIZATIONS = ("none", "nf4", "fp4", "int8")


def answer_bounded(
    request: ScenarioRequest, unknown: UnknownArchitectureError, *, force: bool = False
) -> Bounded:
    """Bounds of the job of ``request``, whose architecture is ``unknown``.

    Without torch they are not given: no field says how many matrices a layer has.

    Raises:
        UnknownArchitectureError: torch or ``measure`` is not installed, or ``unknown`` is a part of a model.
        NotModelledError: the modules cannot be counted, or the range was not compared for such a job.
        UsageError: something that was given cannot be used.
    """
    if any(find_spec(name) is None for name in _NEEDED):
        raise unknown
    found: list[Description] = []

    def reader(fields: Mapping[str, Any], where: str) -> ModelSpec:
        try:
            return model_from_config(fields, where)
        except UnknownArchitectureError as error:
            if fields["model_type"] != error.model_type:
                raise  # of a part inside a model that is known
            found.append(_described(fields, error))
            return in_checkpoint_dtype(found[-1].model, fields)

    scenario = resolve(request, force=force, reader=reader)
    if (reason := _unbounded(scenario, found)) is not None:
        raise _none(unknown, reason)
    within = _range_of(scenario, found[0])
    try:
        plain = _plain_of(request, scenario)
    except PlannerError as error:
        raise _none(unknown, str(error)) from None
    nothing = Coefficients()
    bounds = bounds_of(job_of(scenario, nothing), job_of(plain, nothing), within)
    return Bounded(unknown.model_type, scenario, bounds)


def _described(fields: Mapping[str, Any], unknown: UnknownArchitectureError) -> Description:
    if fields.get("quantization_config") is not None:
        raise _none(unknown, "its checkpoint is quantised")
    try:
        return _counted(json.dumps(fields))
    except PlannerError as error:
        raise _none(unknown, str(error).removeprefix("-: ")) from None


def _none(unknown: UnknownArchitectureError, reason: str) -> NotModelledError:
    return NotModelledError(f"{unknown}; its memory is not bounded either: {reason}")


@lru_cache(maxsize=64)
def _counted(config: str) -> Description:
    return run_measure(Description, ("describe", "-"), given=config, timeout_s=_TIMEOUT_S)


def _unbounded(scenario: Scenario, found: list[Description]) -> str | None:
    """Why the range of known architectures says nothing of such a job."""
    recipe, stack = scenario.recipe, scenario.stack
    tasks, quantised = ", ".join(_TASKS), recipe.numerics.quantization
    reasons = (
        (len(found) != 1, "it has a second model"),
        (recipe.task not in _TASKS, f"--task {recipe.task}; {tasks} are"),
        (recipe.parallel.divides or recipe.parallel.experts > 1, "GPUs divide its layers or sequences"),
        (recipe.offload != "none", f"--offload {recipe.offload}"),
        (recipe.loss != "hf", f"--loss {recipe.loss} replaces code of known models"),
        (stack.model_code == "own", f"stack '{stack.id}' replaces code of known models"),
        (bool(recipe.train_layers) or recipe.optimizer_in_backward, "it updates layer by layer"),
        (quantised not in _QUANTIZATIONS, f"--quantization {quantised}"),
        (recipe.numerics.fp8 != "none" or recipe.numerics.qat != "none", "its products are in 8 bits"),
        (bool(recipe.adapter and recipe.adapter.modules_to_save), "modules are trained beside adapters"),
        (not scenario.hardware.gpu.is_cuda, "not a CUDA device"),
        (
            all(recipe.attention not in each.attention for each in found),
            f"its code in Transformers has no {recipe.attention} attention; use --attention eager",
        ),
    )
    return next((reason for is_so, reason in reasons if is_so), None)


def _range_of(scenario: Scenario, description: Description) -> Range:
    recipe = scenario.recipe
    key = (description.family, training_of(recipe), recipe.gradient_checkpointing)
    return next(each for each in read_ranges().ranges if each.key == key)


def _plain_of(request: ScenarioRequest, scenario: Scenario) -> Scenario:
    """The same job of its plain decoder, with names of Llama's modules in place of those of the model."""
    model = plain_decoder(scenario.whole_model or scenario.model)
    adapter = scenario.recipe.adapter
    if adapter is None:
        return resolve(request, force=True, model=model)
    matrices = [linear for linear, _ in scenario.model.linears() if is_adapted(linear, adapter.targets)]
    attention_alone = all(linear.group == "attention" for linear in matrices)
    named = ("attention",) if attention_alone else ("all-linear",)
    targets = ScenarioRequest({"lora_targets": Given(named, "its plain decoder")})
    return resolve(merge(request, targets), force=True, model=model)
