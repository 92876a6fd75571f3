"""Commands of ``megatron sft`` and ``pt``, value by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.read import read_config
from planner.errors import ExitCode, NotModelledError
from tests.files import answer_to, written

START = "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B-Instruct --dataset a --max_length 4096 "
EXPERTS = START.replace("Qwen2.5-7B-Instruct", "Qwen3-30B-A3B") + "--expert_model_parallel_size 8 "


def asked(command: str) -> Any:
    """What ``plan check --command`` answers on eight GPUs."""
    return answer_to(command, {"gpu": "h100-sxm:8"})


def job_of(command: str) -> Any:
    """The job of a command that is answered."""
    checked = asked(command)
    assert checked.failure == ""
    return checked.subject


def recipe_of(command: str) -> Any:
    """Its recipe, with what the stack adds."""
    return job_of(command).scenario.recipe


def test_defaults_are_those_of_megatron() -> None:
    """Full, one sample at a time and 16 in a step, nothing computed again, gradients in fp32."""
    job = job_of(START)
    recipe, stack = job.scenario.recipe, job.scenario.stack
    assert (recipe.method, recipe.batch.rows, recipe.batch.grad_accum) == ("full", 1, 2)
    assert (recipe.gradient_checkpointing, recipe.sharding.name) == (False, "distributed-optimizer")
    assert (stack.id, stack.main_gradients, stack.adam_states) == ("megatron", "fp32", "masters")


def test_converted_weights_are_those_of_the_model_whose_name_they_have() -> None:
    """``--load``, as 3.4 to 3.9 had it, with the defaults of these versions."""
    start = START.replace("--model Qwen/Qwen2.5-7B-Instruct", "--load out/Qwen2.5-7B-Instruct-mcore")
    job = job_of(f"{start} --use_flash_attn true --save out")
    assert (job.scenario.model.id, job.scenario.stack.loss_backward) == ("qwen2.5-7b", ("compute", "float"))
    fused = job_of(f"{start} --cross_entropy_loss_fusion true")
    assert fused.scenario.stack.loss_backward == job_of(START).scenario.stack.loss_backward
    assert "say --model" in asked(start.replace("Qwen2.5-7B-Instruct", "mine")).failure
    experts = start.replace("Qwen2.5-7B-Instruct", "Qwen3-30B-A3B") + "--expert_model_parallel_size 8"
    assert "moe_grouped_gemm true is" in asked(experts).failure
    assert asked(f"{experts} --moe_grouped_gemm true").failure == ""


def test_a_model_that_the_bridge_lacks_stops() -> None:
    """Its list has no Mixtral."""
    command = START.replace("Qwen/Qwen2.5-7B-Instruct", "mistralai/Mixtral-8x7B-Instruct-v0.1")
    assert "no Mixtral under Megatron" in asked(command).failure


def test_degrees_and_sizes() -> None:
    """Micro-batches follow from the samples of a step: GPUs that share a batch are one."""
    recipe = recipe_of(
        START + "--tensor_model_parallel_size 2 --sequence_parallel true --pipeline_model_parallel_size 2 "
        "--micro_batch_size 2 --global_batch_size 32 --decoder_last_pipeline_num_layers 12 --packing true "
        "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1"
    )
    parallel, batch = recipe.parallel, recipe.batch
    assert (parallel.tensor, parallel.pipeline, parallel.layers) == (2, 2, (16, 12))
    assert (batch.rows, batch.grad_accum, batch.seq_len, parallel.microbatches) == (2, 8, 4096, 8)
    assert recipe.gradient_checkpointing
    assert recipe_of(EXPERTS).parallel.experts == 8


def test_features_of_experts_are_divided_where_a_file_says_so() -> None:
    """Beside a router in fp32."""
    divided = EXPERTS.replace("size 8", "size 4") + "--tensor_model_parallel_size 2 --sequence_parallel true "
    assert recipe_of(divided).parallel.expert_tensor == 1
    both = divided + "--expert_tensor_parallel_size 2 "
    assert recipe_of(both).parallel.expert_tensor == 2
    assert "beside a router in 16 bits" in asked(both + "--moe_router_dtype none").failure


def test_gpus_that_divide_matrices_may_divide_experts() -> None:
    """One GPU in each group has an expert, and gradients are reduced by nobody; a capacity is remarked on."""
    checked = asked(
        EXPERTS.replace("size 8 ", "size 4 ") + "--tensor_model_parallel_size 4 --sequence_parallel true "
        "--pipeline_model_parallel_size 2 --moe_expert_capacity_factor 2 --global_batch_size 4"
    )
    assert checked.failure == ""
    assert any("capacity" in text for _, text in checked.remarks)


def test_sequences_are_divided_by_a_ring_or_by_heads() -> None:
    """A ring where nothing is said."""
    for words, heads in (("", False), ("--cp_comm_type p2p", False), ("--cp_comm_type a2a", True)):
        checked = asked(START + f"--context_parallel_size 2 {words}")
        assert checked.failure == ""
        assert checked.subject.scenario.stack.exchanges_heads is heads


def test_adapters() -> None:
    """All matrices of the layers, by rank 8 and a dropout of 0.05, in the dtype of the model."""
    adapter = recipe_of(START + "--tuner_type lora").adapter
    assert (adapter.rank, adapter.dropout, adapter.targets, adapter.dtype) == (
        8,
        0.05,
        ("all-linear",),
        "bf16",
    )


def test_what_the_optimizer_keeps() -> None:
    """A precise optimizer in host RAM; gradients and moments in bf16; a loss that is not compiled."""
    job = job_of(
        START + "--use_precision_aware_optimizer true --main_grads_dtype bf16 --exp_avg_dtype bf16 "
        "--exp_avg_sq_dtype bf16 --optimizer_cpu_offload true --optimizer_offload_fraction 1 "
        "--cross_entropy_loss_fusion false"
    )
    stack = job.scenario.stack
    assert (stack.main_gradients, stack.adam_states) == ("bf16", "precise_bf16")
    assert (job.scenario.recipe.offload, stack.loss_backward) == ("optimizer", ("compute", "float"))


def test_products_in_8_bits() -> None:
    """By a format; the checkpoint's own FP8 is taken over, with masters of whole matrices, or unpacked."""
    fp8 = "--fp8_format e4m3 --fp8_recipe blockwise --fp8_param_gather true"
    assert recipe_of(START + "--fp8_recipe blockwise").numerics.fp8 == "none"
    job = job_of(START + fp8)
    assert job.scenario.recipe.numerics.fp8 == "te-blockwise-gathered"
    assert not job.scenario.stack.whole_masters
    released = START.replace("Qwen2.5-7B-Instruct", "Qwen3-14B-FP8")
    assert job_of(released + fp8).scenario.stack.whole_masters
    unpacked = job_of(released).scenario
    assert (unpacked.recipe.numerics.fp8, unpacked.model.id) == ("none", "qwen3-14b")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("--tensor_model_parallel_size 2", "tensor_model_parallel_size"),
        ("--context_parallel_size 2 --cp_comm_type a2a p2p", "cp_comm_type"),
        ("--context_parallel_size 2 --cp_partition_mode contiguous", "cp_partition_mode"),
        ("--fp8_format e4m3 --fp8_recipe custom", "fp8_recipe"),
        ("--fp8_format e4m3 --fp8_recipe mxfp8 --fp8_param_gather true", "fp8_param_gather"),
        ("--mtp_num_layers 1", "mtp_num_layers"),
        ("--padding_free false", "padding_free"),
        ("--use_distributed_optimizer false", "use_distributed_optimizer"),
        ("--optimizer muon", "optimizer"),
        ("--task_type embedding", "task_type"),
        ("--attention_backend unfused", "attention_backend"),
        ("--recompute_modules moe mlp", "recompute_modules"),
        (
            "--recompute_granularity full --recompute_method block --recompute_num_layers 4",
            "recompute_method",
        ),
        ("--optimizer_cpu_offload true --optimizer_offload_fraction 0.5", "optimizer_offload_fraction"),
        ("--tuner_type lora --target_modules linear_qkv", "target_modules"),
        ("--tuner_type lora --modules_to_save output_layer", "modules_to_save"),
        ("--rlhf_type dpo", "rlhf_type"),
        ("--exp_avg_dtype bf16", "exp_avg_dtype"),
        ("--moe_new_kernel true", "moe_new_kernel"),
        ("--moe_expert_capacity_factor 0.5", "moe_expert_capacity_factor"),
    ],
)
def test_what_is_not_modelled_is_refused_by_its_key(words: str, key: str) -> None:
    """Keys that may change memory are never ignored."""
    checked = asked(START + words)
    assert f"{key}" in checked.failure
    assert checked.exit_code in (ExitCode.NOT_MODELLED, ExitCode.USAGE)


@pytest.mark.parametrize(
    "words",
    [
        "--recompute_granularity full",
        "--recompute_granularity everything",
        "--exp_avg_dtype bf16 --exp_avg_sq_dtype bf16",
        "--global_batch_size 12",
    ],
)
def test_what_megatron_stops_at(words: str) -> None:
    """Numbers that it needs, or that do not divide."""
    assert asked(START + words).exit_code not in (ExitCode.FITS, ExitCode.NOT_MODELLED)


def test_rlhf_by_megatron_is_refused() -> None:
    """Whatever its arguments say."""
    checked = asked(START.replace("megatron sft", "megatron rlhf"))
    assert "dpo by Megatron is not modelled" in checked.failure


def test_a_file_of_megatron_is_told_by_its_batches(tmp_path: Path) -> None:
    """Else ms-swift's Trainer is meant; what belongs to Megatron alone is then refused by its key."""
    text = "model: Qwen/Qwen2.5-7B\ntuner_type: full\nmax_length: 4096\ntensor_model_parallel_size: 1\n"
    path = written(tmp_path, text + "micro_batch_size: 2\n")
    assert read_config(path).tool_name == "ms-swift-megatron"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(NotModelledError, match="with --stack megatron"):
        read_config(path)
