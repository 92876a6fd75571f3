"""What rules about tasks say with numbers, and which engines and losses go with a reference."""

from __future__ import annotations

import re

import pytest

from tests.planner.intake.jobs import warned

TRL = {"stack": "trl", "seq": 512}


@pytest.mark.parametrize(
    ("batch", "gpus", "generations", "would_do"),
    [
        (6, 1, 4, 8),
        (1, 1, 7, 7),
        (3, 2, 8, 4),
        (5, 6, 4, 6),
        (8, 1, 4, None),
        (2, 2, 4, None),
        (3, 4, 4, None),
    ],
)
def test_generations_are_whole_prompts(batch: int, gpus: int, generations: int, would_do: int | None) -> None:
    """Batch x GPUs is a multiple of the generations; the batch that is named is the next that goes."""
    job = {**TRL, "task": "grpo", "gpus": gpus, "generations": generations, "grad_accum": 1}
    said = warned("generations-uneven", **job, batch=batch)
    assert [int(each) for each in re.findall(r"--batch (\d+) would do", said)] == (
        [] if would_do is None else [would_do]
    )
    if would_do is not None:
        assert not warned("generations-uneven", **job, batch=would_do)


@pytest.mark.parametrize(
    ("more", "stops"),
    [
        ({}, True),
        ({"vllm_memory": 0.6}, False),
        ({"gpus": 2, "vllm_tensor_parallel": 2}, False),
        ({"method": "qlora"}, False),
        ({"generator": "vllm-server"}, False),
        ({"gpu": "a100-80-sxm"}, False),
    ],
)
def test_the_share_of_vllm_holds_its_weights(more: dict[str, object], stops: bool) -> None:
    """12.55 GiB of Llama 2 7B in 0.3 of a card of 24 GB, or of 80 GB; in two of them; in 4 bits."""
    job = {**TRL, "task": "grpo", "model": "llama-2-7b", "gpu": "rtx4090", "method": "lora"}
    said = warned("vllm-share-short", **{**job, "generator": "vllm", **more})
    assert bool(said) == stops
    assert ("12.6 GiB" in said) == stops


@pytest.mark.parametrize(
    ("flags", "answers"),
    [
        ({"task": "dpo", "sharding": "zero2"}, False),
        ({"task": "dpo", "sharding": "fsdp"}, False),
        ({"task": "dpo", "sharding": "fsdp", "method": "full"}, False),
        ({"task": "dpo", "sharding": "fsdp", "method": "full", "versions": ["trl==0.24.0"]}, True),
        ({"task": "dpo", "sharding": "zero3"}, True),
        ({"task": "dpo", "sharding": "zero3", "versions": ["trl==1.16.0"]}, False),
        ({"task": "dpo", "sharding": "zero3", "method": "qlora", "versions": ["trl==1.16.0"]}, True),
        ({"task": "dpo", "sharding": "zero3", "method": "full", "versions": ["trl==1.16.0"]}, False),
        ({"task": "dpo", "sharding": "fsdp", "versions": ["trl==1.16.0"]}, False),
        ({"task": "kto", "sharding": "fsdp", "versions": ["trl==1.16.0"]}, True),
        ({"task": "kto", "sharding": "zero3", "method": "full"}, True),
        ({"task": "kto", "sharding": "zero3", "method": "full", "versions": ["trl==1.16.0"]}, False),
        ({"task": "kto", "sharding": "zero3", "versions": ["trl==1.16.0"]}, False),
        ({"task": "orpo", "sharding": "zero3"}, False),
        ({"task": "dpo", "sharding": "fsdp1"}, True),
    ],
)
def test_a_reference_runs_on_whole_weights(flags: dict[str, object], answers: bool) -> None:
    """Or under FSDP2, whole in TRL from 0.29 on, and TRL's tiles under ZeRO-3; ORPO has none."""
    said = warned("reference-divided", **{**TRL, "gpus": 2, "versions": ["trl==1.14.0"], **flags})
    assert bool(said) == answers


@pytest.mark.parametrize(
    ("flags", "answers"),
    [
        ({"task": "dpo"}, False),
        ({"task": "kto"}, False),
        ({"task": "kto", "method": "full"}, False),
        ({"task": "dpo", "method": "full", "offload": "optimizer+params"}, False),
        ({"task": "kto", "offload": "optimizer+params"}, False),
        ({"task": "dpo", "method": "qlora"}, True),
        ({"task": "kto", "method": "full", "versions": ["deepspeed==0.14.0"]}, True),
        ({"task": "dpo", "versions": ["deepspeed==0.14.0"]}, True),
        ({"task": "dpo", "stack": "trl", "method": "full", "offload": "optimizer+params"}, True),
        ({"task": "kto", "method": "full", "sharding": "fsdp"}, True),
    ],
)
def test_llama_factory_asks_a_divided_reference(flags: dict[str, object], answers: bool) -> None:
    """Under ZeRO-3 with any adapter of 16 bits, and with parameters in host RAM; where each forward pass
    begins the order of modules anew, which DeepSpeed's do since 0.15.4.
    """
    said = warned("reference-divided", **{"stack": "llama-factory", "gpus": 2, "sharding": "zero3", **flags})
    assert bool(said) == answers


@pytest.mark.parametrize(
    ("flags", "answers"),
    [
        ({"model": "qwen2.5-0.5b"}, False),
        ({"model": "qwen2.5-0.5b", "sharding": "zero2", "gpus": 2}, False),
        ({"model": "qwen2.5-7b"}, True),
        ({"model": "qwen2.5-7b", "sharding": "zero3", "gpus": 2}, False),
        ({"model": "qwen2.5-7b", "sharding": "zero2", "gpus": 2}, True),
        ({"model": "qwen2.5-0.5b", "sharding": "fsdp", "gpus": 2}, True),
        ({"model": "qwen2.5-0.5b", "gradient_checkpointing": False}, True),
    ],
)
def test_whole_weights_may_score_by_a_value(flags: dict[str, object], answers: bool) -> None:
    """Where the head of words is tied to its table, or ZeRO-3 has states of one that gets no gradient."""
    job = {"stack": "llama-factory", "task": "reward", "method": "full"}
    assert bool(warned("value-head", **job, **flags)) == answers


@pytest.mark.parametrize(
    ("task", "stacks"),
    [
        ("gkd", "swift or trl"),
        ("ppo", "llama-factory"),
        ("grpo", "axolotl or swift or trl"),
        ("kto", "axolotl or llama-factory or swift or trl"),
    ],
)
def test_a_task_needs_a_trainer_that_was_read(task: str, stacks: str) -> None:
    """The message names task and stack, and the stacks that have the task."""
    flags = {"task": task, "teacher_model": "llama-2-7b"} if task == "gkd" else {"task": task}
    said = warned("task-not-in-stack", **flags, stack="torchtune")
    assert f"({task}, torchtune; --stack {stacks})" in said


def test_a_task_that_a_stack_has_needs_no_other() -> None:
    """Nor does language modelling."""
    assert not warned("task-not-in-stack", task="kto", **TRL)
    assert not warned("task-not-in-stack", task="sft", stack="torchtune")


def test_preferences_have_no_fused_loss() -> None:
    """TRL's own tiles are the loss of its trainers, and Liger's is none of them."""
    assert "liger" in warned("preference-loss-kernel", **TRL, task="dpo", loss="liger")
    assert not warned("preference-loss-kernel", **TRL, task="dpo")
    assert not warned("preference-loss-kernel", **TRL, task="sft", loss="liger")


@pytest.mark.parametrize(
    ("stack", "version", "packs"),
    [
        ("trl@0.24", "trl==0.16.1", False),
        ("trl@0.24", "trl==0.25.1", False),
        ("trl@0.24", "trl==0.26.0", True),
        ("trl", "trl==1.5.0", True),
        ("trl", "trl==1.15.0", False),
        ("swift", "ms-swift==4.6.0", True),
        ("axolotl", "axolotl==0.19.0", False),
    ],
)
def test_some_software_packs_a_reward_model(stack: str, version: str, packs: bool) -> None:
    """As it packs the policy."""
    job = {"task": "grpo", "seq": 512, "method": "qlora", "reward_model": "qwen2.5-0.5b"}
    assert bool(warned("reward-model-packed", stack=stack, versions=(version,), **job)) == packs


def test_labels_of_steps_are_of_padded_text() -> None:
    """In Transformers' modules, with a plain head."""
    job = {"task": "prm", "stack": "axolotl"}
    assert not warned("labels-elsewhere", **job)
    assert warned("labels-elsewhere", **job, loss="liger")
    assert warned("labels-elsewhere", **{**job, "stack": "torchtune"})
