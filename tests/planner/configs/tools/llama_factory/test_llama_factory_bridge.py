"""Files and commands of LLaMA-Factory for Megatron-Bridge, value by value."""

from __future__ import annotations

from typing import Any

import pytest

from planner.configs.launchers.launch_lines import Launch, launch_line
from planner.configs.writing.tools import RULES
from tests.files import answer_to

START = (
    "USE_MEGATRON_BRIDGE=1 llamafactory-cli train --stage sft --do_train true --model_name_or_path "
    "Qwen/Qwen3-8B --template qwen3 --cutoff_len 4000 --dataset a --output_dir out --bf16 true "
    "--per_device_train_batch_size 1 --gradient_accumulation_steps 4 "
)
FULL = START + "--finetuning_type full "
EXPERTS = FULL.replace("Qwen3-8B", "Qwen3-30B-A3B")


def asked(command: str) -> Any:
    """What ``plan check --command`` answers on eight GPUs."""
    return answer_to(command, {"gpu": "h100-sxm:8"})


def scenario_of(command: str) -> Any:
    """The job of a command that is answered."""
    checked = asked(command)
    assert checked.failure == ""
    return checked.subject.scenario


def test_defaults_are_adapters_without_dropout() -> None:
    """Of all linears, whatever the file names; nothing is computed again, in segments that grow."""
    scenario = scenario_of(START + "--lora_rank 16 --lora_dropout 0.1 --lora_target q_proj")
    adapter, recipe = scenario.recipe.adapter, scenario.recipe
    assert (adapter.rank, adapter.dropout, adapter.targets) == (16, 0.0, ("all-linear",))
    assert (recipe.batch.seq_len, recipe.batch.grad_accum, recipe.gradient_checkpointing) == (4000, 4, False)
    assert (scenario.stack.adds_gradients, scenario.stack.recomputes_attention) == (False, False)
    assert scenario.segments_grow


def test_degrees_layers_and_the_loss() -> None:
    """Attention alone is computed again where the file says so; the loss is fused unless it says not."""
    scenario = scenario_of(
        FULL + "--tensor_model_parallel_size 2 --sequence_parallel true --context_parallel_size 2 "
        "--recompute_granularity selective --cross_entropy_loss_fusion false"
    )
    parallel = scenario.recipe.parallel
    assert (parallel.tensor, parallel.context, scenario.recipe.method) == (2, 2, "full")
    assert scenario.stack.recomputes_attention
    assert scenario.stack.loss_backward == ("compute", "float")
    whole = "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1"
    assert scenario_of(FULL + whole).recipe.gradient_checkpointing


def test_gpus_that_divide_experts_divide_micro_batches() -> None:
    """LLaMA-Factory takes them for GPUs that share a batch, Megatron does not."""
    recipe = scenario_of(EXPERTS + "--expert_model_parallel_size 4").recipe
    assert (recipe.parallel.experts, recipe.batch.grad_accum) == (4, 1)
    assert "do not divide by 8" in asked(EXPERTS + "--expert_model_parallel_size 8").failure
    divided = EXPERTS + "--tensor_model_parallel_size 2 --sequence_parallel true "
    assert "say expert_model_parallel_size" in asked(divided).failure
    assert scenario_of(divided + "--expert_model_parallel_size 4").recipe.parallel.expert_tensor == 1


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (FULL + "--export_hf_on_finish true", "export_hf_on_finish"),
        (FULL + "--mixed_precision fp8", "mixed_precision"),
        (FULL + "--extra_config more.json", "extra_config"),
        (FULL + "--use_distributed_optimizer false", "use_distributed_optimizer"),
        (FULL + "--moe_token_dispatcher_type flex", "moe_token_dispatcher_type"),
        (FULL + "--account_for_loss_in_pipeline_split true", "account_for_loss_in_pipeline_split"),
        (FULL + "--recompute_granularity full", "recompute_granularity"),
        (FULL + "--recompute_granularity everything", "must be full, selective or none"),
        (START + "--tensor_model_parallel_size 2 --sequence_parallel true", "tensor_model_parallel_size"),
        (START.replace("--stage sft", "--stage pt"), "stage"),
        (START + "--finetuning_type oft", "finetuning_type"),
        (START.replace("Qwen3-8B", "Qwen3-30B-A3B"), "Bridge's adapters of experts"),
        (FULL.replace("Qwen/Qwen3-8B", "mistralai/Mixtral-8x7B-v0.1"), "no such model under Megatron-Bridge"),
    ],
)
def test_what_was_not_read_is_refused_by_its_key(command: str, key: str) -> None:
    """In one sentence."""
    assert key in asked(command).failure


def test_its_line_and_its_fix() -> None:
    """The variable before the command; layers that run again need their method and number."""
    line = launch_line("llama-factory-bridge", Launch("train.yaml", gpus=8))
    assert line == "USE_MEGATRON_BRIDGE=1 llamafactory-cli train train.yaml"
    rule = RULES["llama-factory-bridge"]["gradient_checkpointing"]
    assert rule({}, True) == {
        ("recompute_granularity",): "full",
        ("recompute_method",): "uniform",
        ("recompute_num_layers",): 1,
    }
