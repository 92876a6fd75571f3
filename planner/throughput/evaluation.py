"""Evaluation during a run: forward passes only, on samples that the optimizer never sees."""

from __future__ import annotations

from dataclasses import replace

from planner.arrays import ceil_div, maximum, minimum
from planner.domain.recipes.recipe import Number
from planner.throughput.communication import (
    HOOKS_PER_PASS,
    overlapping_share,
    ring_fraction,
    stored_param_bytes,
)
from planner.throughput.terms import kernel_seconds, pass_seconds
from planner.throughput.time_inputs import TimedJob
from planner.throughput.tokens import micro_step


def run_evaluation_seconds(job: TimedJob) -> Number:
    """Evaluation of the whole run, once per epoch as ``eval_strategy="epoch"`` does; seconds.

    Formula: epochs x ceil(samples / (GPUs x evaluation batch)) x :func:`evaluation_step_seconds`.
    Source: transformers 5.23 ``trainer.py`` evaluation_loop; every process takes its share of the samples.
    """
    run = job.scenario.run
    if run.eval_samples is None:
        return 0.0
    steps = ceil_div(run.eval_samples, job.world / job.recipe.parallel.gpus * _micro_batch(job))
    return run.epochs * steps * evaluation_step_seconds(job)


def evaluation_step_seconds(job: TimedJob) -> Number:
    """One forward pass of an evaluation micro-batch on every GPU; seconds.

    Formula: max(kernels, issue time of the operators and hooks) + gathered and fetched weights as
    far as they do not hide.  Weights that live elsewhere are brought in for one pass.
    Source: :mod:`planner.throughput.step_time`, as for training.  Ignored: collecting of logits, metrics,
    and what GPUs that share a batch send.
    """
    batch = replace(job.recipe.batch, micro_batch=_micro_batch(job))
    recipe = replace(job.recipe, batch=batch)
    micro = micro_step(recipe, job.coefficients, job.scenario.stack)
    evaluated = replace(job, scenario=replace(job.scenario, recipe=recipe), micro=micro)
    # Training from preferences asks the model as it was, too.
    seconds = pass_seconds(evaluated, "evaluation")
    kernels, issue = kernel_seconds(seconds), seconds["launches"] * job.coefficients.launch_s
    if job.recipe.sharding.is_zero3:
        issue = issue + job.called_modules * HOOKS_PER_PASS * job.coefficients.hook_s
    busy = maximum(kernels, issue)
    moved = _weight_seconds(job)
    return busy + moved - minimum(moved * overlapping_share(job), kernels)


def _micro_batch(job: TimedJob) -> Number:
    """Samples that one GPU evaluates at a time."""
    given = job.scenario.run.eval_micro_batch
    return job.recipe.batch.micro_batch if given is None else given


def _weight_seconds(job: TimedJob) -> Number:
    """Seconds to bring one pass worth of weights together: from the other GPUs, and from the host."""
    recipe, rates = job.recipe, job.rates
    seconds: Number = 0.0
    if recipe.sharding.gathers_weights:
        shards = recipe.shards(job.scenario.hardware)
        seconds = stored_param_bytes(job) * ring_fraction(shards) / rates.collective_bytes_per_s
    if recipe.offloads_params:
        seconds = (
            seconds
            + stored_param_bytes(job) / (job.world / recipe.parallel.tensor) / rates.host_link_bytes_per_s
        )
    return seconds
