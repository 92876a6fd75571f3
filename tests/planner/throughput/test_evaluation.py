"""Seconds that evaluations add to a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import Batch
from planner.domain.scenario import RunPlan
from planner.throughput.communication import (
    stored_param_bytes,
)
from planner.throughput.evaluation import run_evaluation_seconds
from planner.throughput.time_inputs import job_of
from tests.planner.throughput.jobs import PRIORS, predicted, recipe, scenario


def test_evaluation_adds_forward_passes_to_the_run(llama: ModelSpec) -> None:
    """Each epoch ends with whole evaluation steps on all GPUs; a step is a forward pass,
    a good third of a training step.
    """
    batch = Batch(4, 1, 2048, "packed", 2048)
    case = scenario(llama, recipe(sharding="ddp", batch=batch, gradient_checkpointing=False), gpus_per_node=2)
    plain, twice = RunPlan(1000, 2.0), RunPlan(1000, 2.0, eval_samples=100, eval_micro_batch=4)
    added = predicted(replace(case, run=twice)).run_time_s - predicted(replace(case, run=plain)).run_time_s
    steps = 2 * 13
    assert added / steps == pytest.approx(predicted(case).step_s / 3, rel=0.15)


def test_evaluation_brings_sharded_weights_in_once_a_step(llama: ModelSpec) -> None:
    """Under ZeRO-3 with offloaded weights,
    one sample at a time takes as long as moving all weights to each GPU.
    """
    sharded = recipe(sharding="zero3", offload="optimizer+params")
    case = scenario(llama, sharded, gpus_per_node=2)
    job = job_of(replace(case, run=RunPlan(1000, eval_samples=2, eval_micro_batch=1)), PRIORS)
    assert job is not None
    moved_s = stored_param_bytes(job) / 2 / job.rates.host_link_bytes_per_s
    assert run_evaluation_seconds(job) > moved_s
    whole = predicted(replace(case, run=RunPlan(1000, eval_samples=200, eval_micro_batch=1)))
    assert whole.run_time_s == pytest.approx(1000 / whole.samples_per_s + 100 * run_evaluation_seconds(job))
