"""A job with other flags is the job that would have been read with them."""

from __future__ import annotations

from functools import partial

import pytest

from planner.catalog.stacks import load_stack
from planner.errors import UsageError
from planner.searching.variants import (
    Flags,
    refusals,
    request_of,
    warnings_about,
    with_flags,
    with_sizes,
)
from tests.jobs import resolved

BASE = {"model": "llama-3.2-1b", "method": "lora", "gpu": "4090", "seq": "1024", "batch": "4"}


scenario = partial(resolved, BASE)
"""The job of BASE with these flags."""


@pytest.mark.parametrize(
    "flags",
    [
        {"batch": "2", "grad-accum": "8"},
        {"method": "qlora"},
        {"method": "full"},
        {"gradient-checkpointing": True},
        {"optimizer": "adamw_8bit", "lora-rank": "64"},
        {"seq": "512", "padding": "packed"},
        {},
    ],
)
def test_flags_that_are_added_are_those_that_are_typed(flags: Flags) -> None:
    """What nobody gave follows anew: a quantised base has other dtypes, a full fine-tune no adapters."""
    typed = {name.replace("-", "_"): value for name, value in flags.items()}
    changed, read = with_flags(scenario(), flags), scenario(**typed)
    assert changed.recipe == read.recipe
    assert changed.hardware == read.hardware
    entries = {each.name: each.value for each in changed.assumptions}
    assert {each.name: each.value for each in read.assumptions}.items() <= entries.items()


@pytest.mark.parametrize(
    ("job", "stack"),
    [
        # Unsloth loads the text part of the checkpoint alone.
        ({"model": "gemma-3-4b", "method": "qlora"}, "unsloth"),
        ({"model": "gemma-3-4b", "method": "qlora", "stack": "unsloth"}, "hf-trainer@5"),
        # Axolotl's kernels for adapters are off where preferences are trained.
        ({"task": "dpo"}, "axolotl"),
        # Before Transformers 5 each expert has matrices of its own.
        ({"model": "qwen3-30b-a3b"}, "hf-trainer@4"),
    ],
)
def test_another_stack_is_as_if_it_had_been_typed(job: dict[str, str], stack: str) -> None:
    """Model, recipe and stack are those of the job whose flags name the stack."""
    changed = with_flags(scenario(**job), {}, stack=load_stack(stack))
    read = scenario(**{**job, "stack": stack})
    assert changed.model == read.model
    assert changed.recipe == read.recipe
    assert changed.stack == read.stack


@pytest.mark.parametrize("more", [{}, {"reward_dtype": "bf16"}])
def test_a_reward_model_stays_on_the_card(more: dict[str, str]) -> None:
    """Another batch saves nothing of the model that scores."""
    grpo = {"task": "grpo", "reward_model": "llama-3.2-1b", "stack": "trl", **more}
    read = scenario(**grpo, batch="16")
    assert with_flags(scenario(**grpo, batch="8"), {"batch": "16"}).recipe == read.recipe


@pytest.mark.parametrize(
    "more",
    [
        {"completion_length": "100", "generations": "4", "generation_steps": "2", "iterations": "3"},
        {"generator": "vllm", "vllm_memory": "0.7", "compare_reference": "true"},
        {"generator": "vllm", "vllm_sleep": "true"},
        {"generator": "vllm-server"},
        {"task": "ppo", "stack": "llama-factory@0.8", "completion_length": "64", "method": "lora"},
    ],
    ids=lambda more: next(iter(more)),
)
def test_how_completions_are_generated_stays(more: dict[str, str]) -> None:
    """Another batch changes nothing of who generates them, and how."""
    job = {"task": "grpo", "stack": "trl", "grad_accum": "2", **more}
    read = scenario(**job, batch="16")
    assert with_flags(scenario(**job, batch="8"), {"batch": "16"}).recipe == read.recipe


def test_a_flag_may_be_taken_away() -> None:
    """Then it is as if it had never been typed; one that nobody typed can be taken away, too."""
    asked = scenario(lora_rank="64", modules_to_save="lm_head")
    assert (
        with_flags(asked, {"lora-rank": None, "modules-to-save": None, "loss": None}).recipe
        == scenario().recipe
    )


def test_a_value_that_cannot_be_is_refused() -> None:
    """With the words of the flag."""
    with pytest.raises(UsageError, match="batch must be a whole number from 1"):
        with_flags(scenario(), {"batch": "0"})


def test_only_what_was_given_is_in_the_request() -> None:
    """Defaults of the stack and of the catalog are not."""
    values = request_of(scenario(lora_rank="4")).values
    assert {"method", "seq", "batch", "lora_rank"} <= values.keys()
    assert not {"optimizer", "loss", "attention", "precision", "grad_accum"} & values.keys()
    assert values["batch"].value == 4


def test_sizes_are_replaced_alone() -> None:
    """All else stays."""
    larger = with_sizes(scenario(), 8, 2048, 2000)
    batch = larger.recipe.batch
    assert (batch.micro_batch, batch.seq_len, batch.tokens_per_sample) == (8, 2048, 2000)
    assert with_sizes(larger, 4, 1024, scenario().recipe.batch.tokens_per_sample).recipe == scenario().recipe


def test_rules_are_named_with_what_they_say() -> None:
    """Offload without an engine is refused, and a job without it is not."""
    broken = resolved(BASE | {"sharding": "none", "offload": "optimizer", "method": "full"}, force=True)
    found = refusals(broken)
    assert found.keys() == {"offload-without-engine"}
    assert found["offload-without-engine"]
    assert refusals(scenario()) == {}
    assert not warnings_about(scenario()) & refusals(broken).keys()


@pytest.mark.parametrize(
    "flags",
    [
        "--model llama-3.1-8b --pipeline-parallel 2 --pipeline-schedule interleaved --pipeline-runs 4",
        "--model llama-3.1-8b --pipeline-parallel 4 --pipeline-first-layers 5",
        "--model qwen3-30b-a3b --tensor-parallel 2 --expert-tensor-parallel 2",
        "--model qwen3-30b-a3b --stack llama-factory-mca --tensor-parallel 2 --expert-tensor-parallel 1",
        "--model qwen3-30b-a3b --stack torchtitan@2025 --expert-parallel 8",
    ],
)
def test_a_variant_is_divided_as_the_job_was(flags: str) -> None:
    """Layers in runs and groups, and features of experts, whatever else changes."""
    job = resolved(f"--stack megatron --method full --gpu h100-sxm:8 --seq 4096 --grad-accum 8 {flags}")
    assert with_flags(job, {"batch": "2"}).recipe.parallel == job.recipe.parallel
