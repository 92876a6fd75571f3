"""What formulas read of a job: parameters, processes and rows, and the jobs of other passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError
from planner.program.job import Job, generation_job, job_of, reference_job, reward_job
from tests.planner import pipelines
from tests.planner.intake.jobs import scenario_of

# Llama 2 7B, https://huggingface.co/meta-llama/Llama-2-7b-hf: 32 layers of 4,096 and 11,008 features.
PARAMETERS = 2 * 32_000 * 4_096 + 32 * (4 * 4_096**2 + 3 * 4_096 * 11_008 + 2 * 4_096) + 4_096
# Two matrices of rank 16 beside each of seven.
ADAPTERS = 32 * 16 * (4 * 2 * 4_096 + 3 * (4_096 + 11_008))


def scenario(**flags: object) -> Scenario:
    """Four samples of 512 tokens."""
    given = {"model": "llama-2-7b", "method": "full", "gpu": "a100-80gb", "seq": 512, "batch": 4}
    return scenario_of(**{**given, **flags})


def job(**flags: object) -> Job:
    """The job of :func:`scenario`."""
    return job_of(scenario(**flags), Coefficients())


def test_parameters_of_the_model_and_of_adapters() -> None:
    """All of it, or the adapters alone, are trained."""
    full, lora = job(), job(method="lora", lora_rank=16, lora_targets="all-linear")
    assert (full.base_params, full.adapter_params, full.trained) == (PARAMETERS, 0, PARAMETERS)
    assert (lora.base_params, lora.adapter_params, lora.trained) == (PARAMETERS, ADAPTERS, ADAPTERS)
    assert full.tokens == 4 * 512


@pytest.mark.parametrize(
    ("flags", "weights", "states"),
    [
        ({}, 1, 1),
        ({"gpus": 8, "sharding": "ddp"}, 1, 1),
        ({"gpus": 8, "sharding": "zero2"}, 1, 8),
        ({"gpus": 8, "sharding": "zero3"}, 8, 8),
        ({"gpus": 8, "sharding": "fsdp"}, 8, 8),
        ({"gpus": 8, "sharding": "fsdp", "method": "qlora"}, 1, 8),
    ],
)
def test_over_how_many_processes_weights_and_states_are_divided(
    flags: dict[str, object], weights: int, states: int
) -> None:
    """Bytes of 4-bit matrices are not divided, unless they are stored as floats."""
    asked = job(**flags)
    assert (asked.weight_shards, asked.optimizer_shards) == (weights, states)
    assert asked.updated == asked.trained / states


def test_a_micro_batch_of_one_row_is_single() -> None:
    """In a grid only where all of it is; a pair of a chosen and a rejected sample is two rows."""
    assert [job(batch=n).single for n in (1, 2)] == [True, False]
    one = job(batch=1)
    for sizes, single in (([1, 1], True), ([1, 2], False)):
        batch = replace(one.recipe.batch, micro_batch=np.array(sizes))
        grid = job_of(replace(one.scenario, recipe=replace(one.recipe, batch=batch)), Coefficients())
        assert (grid.single, grid.is_one) == (single, False)
    pairs = job(batch=1, task="dpo", stack="trl")
    assert (pairs.single, pairs.single_chosen, pairs.is_one) == (False, True, True)


@pytest.mark.parametrize(
    ("seq", "attention", "needs"),
    [(4_095, "sdpa", False), (4_096, "sdpa", True), (4_096, "flash2", False), (4_096, "eager", False)],
)
def test_a_sequence_that_reaches_the_window_needs_a_mask(seq: int, attention: str, needs: bool) -> None:
    """Mistral 7B v0.1 sees 4,096 tokens."""
    asked = job(model="mistral-7b-v0.1", seq=seq, attention=attention, batch=1)
    assert asked.needs_mask(asked.model.groups[0].block) is needs


def test_a_longer_batch_is_the_same_job() -> None:
    """Only its padded length changes."""
    short = job()
    longer = short.at_length(1024)
    assert (short.tokens, longer.tokens) == (4 * 512, 4 * 1024)
    assert replace(longer.recipe, batch=short.recipe.batch) == short.recipe


def test_a_whole_pipeline_is_refused() -> None:
    """Each of its groups is a job."""
    with pytest.raises(NotModelledError, match="pipeline"):
        job_of(pipelines.scenario_of(), Coefficients())


def test_the_reference_model_of_adapters_is_the_model_without_them() -> None:
    """A full fine-tune has a second model, which is not trained and not checkpointed."""
    lora = reference_job(job(method="lora", task="dpo", stack="trl"))
    assert (lora.recipe.adapter, lora.adapter_params, lora.base_params) == (None, 0, PARAMETERS)
    second = reference_job(job(task="dpo", stack="trl", gradient_checkpointing=True))
    assert not second.recipe.gradient_checkpointing
    assert second.base_params == PARAMETERS


def test_adapters_generate_in_the_dtype_of_the_weights() -> None:
    """Without autocast; a full fine-tune generates as it trains."""
    flags = {"load_dtype": "fp32", "precision": "bf16-mixed"}
    lora, full = job(method="lora", **flags), job(**flags)
    assert generation_job(lora).recipe.numerics.precision == "fp32"
    assert not generation_job(lora).regime.autocast
    assert generation_job(full) is full
    assert reward_job(full) is None
