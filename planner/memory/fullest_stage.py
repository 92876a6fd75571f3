"""The group of a pipeline that needs the most memory, which decides whether the job fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.anatomy.pipeline_stages import stages_of
from planner.anatomy.trained_parts import makes_input_require_gradient
from planner.domain.prediction import MemoryPrediction
from planner.domain.recipes.parallel import HEAD, TABLE
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError
from planner.memory.replayed_peak import predict_replayed
from planner.program.job import Job, job_of
from planner.program.schedule import most_held


def fullest_job(
    scenario: Scenario,
    coefficients: Coefficients,
    predict: Callable[[Job], MemoryPrediction] = predict_replayed,
) -> Job:
    """The job of that group; of a job without a pipeline its own.

    Only the ends and the second group are looked at: of those between the ends it has as many layers as any,
    and holds as many micro-batches.  GPUs of one process are looked at each: no rule says which has most.

    Raises:
        NotModelledError: GPUs of one process of which none trains anything, or the first one does not.
    """
    stages = stages_of(scenario)
    numbers = sorted({0, min(1, len(stages) - 1), len(stages) - 1})
    if scenario.recipe.parallel.in_turn:
        numbers = [*range(len(stages))]
    jobs = [job_of(stages[number], coefficients) for number in numbers]
    if scenario.recipe.parallel.in_turn:
        _refuse_untrained(jobs)
    return jobs[0] if len(jobs) == 1 else max(jobs, key=lambda job: float(predict(job).must_have_bytes))


def _refuse_untrained(jobs: list[Job]) -> None:
    """A gradient goes back to GPUs behind one that has something trained, or behind a table whose output is
    made to require one.
    """
    first = jobs[0]
    if not any(job.trained for job in jobs):
        raise NotModelledError(
            "Nothing of this job is trained, so it has no step: lora_targets names no part of the model"
        )
    if not first.trained and not makes_input_require_gradient(first.recipe, first.stack):
        raise NotModelledError(
            'device_map="auto" is not modelled where nothing on the first GPU is trained and nothing is '
            "checkpointed: say --gradient-checkpointing true, or fewer GPUs"
        )


def on_whole_nodes(job: Job, scenario: Scenario) -> Job:
    """The same beside all processes of a node, which may be those of several groups; of one process that has
    several GPUs the whole model.
    """
    if job.model.stage is None:
        return job
    if job.model.stage.in_turn:
        alone = replace(job.scenario, model=scenario.model)
        return job_of(alone, job.coefficients)
    return replace(job, scenario=replace(job.scenario, hardware=scenario.hardware))


def stage_words(job: Job) -> tuple[str, ...]:
    """Which group of the pipeline the memory is that of, in a sentence; nothing where there is none."""
    stage = job.model.stage
    if stage is None:
        return ()
    ends = " with the token table" * stage.has(TABLE) + " with the head" * stage.has(HEAD)
    if stage.in_turn:
        which = f"{stage.rank + 1} of {stage.ranks} (cuda:{stage.rank})"
        return (f"Memory is that of GPU {which}, which needs most: {stage.chunks[0]} layers{ends}",)
    held = most_held(stage)
    many = "es" * (held > 1)
    # A micro-batch goes through each run of layers in a pass of its own.
    what = f"micro-batch{many}" if len(stage.chunks) == 1 else f"pass{many} through one run of them"
    said = (
        f"Memory is that of group {stage.rank + 1} of the pipeline's {stage.ranks}, which needs most: "
        f"{' and '.join(map(str, stage.chunks))} layers{ends}, activations of {held} {what} at once"
    )
    return (said,)
