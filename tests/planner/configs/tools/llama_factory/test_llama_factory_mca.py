"""Files of LLaMA-Factory for mcore_adapter, value by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.launchers.launch_lines import Launch, launch_line
from planner.configs.read import read_config
from planner.configs.writing.tools import RULES
from planner.errors import ExitCode, NotModelledError
from tests.files import answer_to, written

START = (
    "USE_MCA=1 llamafactory-cli train --stage sft --do_train true --finetuning_type full --bf16 true "
    "--model_name_or_path Qwen/Qwen3-8B --template qwen3 --cutoff_len 4000 --dataset a --output_dir out "
    "--use_distributed_optimizer true --bias_activation_fusion true --per_device_train_batch_size 1 "
    "--gradient_accumulation_steps 4 "
)
EXPERTS = START.replace("Qwen3-8B", "Qwen3-30B-A3B") + "--moe_grouped_gemm true "


def asked(command: str) -> Any:
    """What ``plan check --command`` answers on eight GPUs."""
    return answer_to(command, {"gpu": "h100-sxm:8"})


def job_of(command: str) -> Any:
    """The job of a command that is answered."""
    checked = asked(command)
    assert checked.failure == ""
    return checked.subject


def test_defaults_are_those_of_mcore_adapter() -> None:
    """All weights, samples of a whole multiple of 64, nothing computed again, in segments that grow."""
    job = job_of(START)
    recipe, stack = job.scenario.recipe, job.scenario.stack
    assert (recipe.method, recipe.batch.rows, recipe.batch.grad_accum) == ("full", 1, 4)
    assert (recipe.batch.seq_len, recipe.batch.is_padded) == (4032, False)
    assert (recipe.gradient_checkpointing, recipe.sharding.name) == (False, "distributed-optimizer")
    assert (stack.id, stack.adds_gradients, stack.loss_backward) == (
        "llama-factory-mca",
        False,
        ("compute", "float"),
    )
    assert job.scenario.segments_grow


def test_products_in_8_bits() -> None:
    """By a format; delayed scaling where none is said, and weights in 16 bits."""
    assert job_of(START + "--fp8_recipe blockwise").scenario.recipe.numerics.fp8 == "none"
    assert job_of(START + "--fp8 hybrid").scenario.recipe.numerics.fp8 == "te-delayed"
    kept = job_of(START + "--fp8 e4m3 --fp8_recipe blockwise --fp8_param true").scenario
    assert kept.recipe.numerics.fp8 == "te-blockwise-gathered"
    assert not kept.stack.whole_masters


def test_a_file_is_told_by_keys_of_both(tmp_path: Path) -> None:
    """Those of Megatron-Bridge alone tell the other way."""
    text = "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: full\nbf16: true\ncutoff_len: 2048\n"
    text += "use_distributed_optimizer: true\nbias_activation_fusion: true\n"
    path = written(tmp_path, text)
    reading = read_config(path)
    assert reading.tool_name == "llama-factory-mca"
    assert any("started with USE_MCA=1" in remark.text for remark in reading.remarks)
    with pytest.raises(NotModelledError, match="USE_MCA=1 llamafactory-cli"):
        read_config(path, "llama-factory")
    path.write_text(f"{text}mixed_precision: bf16_mixed\n", encoding="utf-8")
    assert read_config(path).tool_name == "llama-factory-bridge"


def test_adapters_and_kernels_have_no_effect() -> None:
    """LLaMA-Factory's loader does not run: all weights are trained without them."""
    checked = asked(
        START.replace("_type full", "_type lora") + "--lora_rank 8 --flash_attn fa2 --optim adamw_8bit "
        "--gradient_checkpointing true --enable_liger_kernel true"
    )
    recipe = checked.subject.scenario.recipe
    assert (recipe.method, recipe.optimizer, recipe.loss) == ("full", "adamw_torch_fused", "hf")
    assert not recipe.gradient_checkpointing
    texts = [text for _, text in checked.remarks]
    assert any("all weights are trained" in text for text in texts)
    assert sum("has no effect" in text for text in texts) == 5


def test_degrees_and_layers_that_run_again() -> None:
    """``recompute_granularity full`` alone is every layer; the fused loss needs a divided vocabulary."""
    job = job_of(
        START + "--tensor_model_parallel_size 2 --sequence_parallel true --pipeline_model_parallel_size 2 "
        "--virtual_pipeline_model_parallel_size 2 --recompute_granularity full --recompute_modules mlp "
        "--cross_entropy_loss_fusion true"
    )
    recipe = job.scenario.recipe
    assert (recipe.parallel.tensor, recipe.parallel.pipeline, recipe.parallel.chunks) == (2, 2, 2)
    assert recipe.gradient_checkpointing
    assert "nll_grad" in job.scenario.stack.loss_backward
    runs = "--pipeline_model_parallel_size 2 --virtual_pipeline_model_parallel_size 6"
    assert job_of(START + runs).scenario.recipe.parallel.layers == (3,) * 12
    assert "into 8 runs of equal length" in asked(START + "--pipeline_model_parallel_size 8").failure


def test_pre_training_pads_to_eight() -> None:
    """Stage pt."""
    recipe = job_of(START.replace("sft", "pt") + "--packing true").scenario.recipe
    assert (recipe.task, recipe.batch.seq_len) == ("pretrain", 4000)


def test_mixtures_say_how_their_experts_run() -> None:
    """Experts at once, and tokens exchanged; both are off where a file says nothing."""
    assert "moe_token_dispatcher_type" in asked(EXPERTS).failure
    assert "experts one after the other" in asked(EXPERTS.replace("gemm true", "gemm false")).failure
    exchanged = EXPERTS + "--moe_token_dispatcher_type alltoall --expert_model_parallel_size 2 "
    assert job_of(exchanged).scenario.recipe.parallel.experts == 2
    # A dense model leaves all of it out.
    assert asked(START).failure == ""


def test_features_of_experts_are_divided_as_other_matrices_are() -> None:
    """Unless the file says otherwise; few experts have a router in 16 bits, which was not read."""
    divided = (
        EXPERTS
        + "--moe_token_dispatcher_type alltoall --tensor_model_parallel_size 2 --sequence_parallel true "
    )
    assert job_of(divided).scenario.recipe.parallel.expert_tensor == 2
    whole = job_of(divided + "--expert_tensor_parallel_size 1").scenario.recipe
    assert whole.parallel.expert_tensor == 1
    dense = job_of(START + "--tensor_model_parallel_size 2 --sequence_parallel true").scenario.recipe
    assert dense.parallel.expert_tensor == 1
    few = divided.replace("Qwen/Qwen3-30B-A3B", "mistralai/Mixtral-8x7B-v0.1")
    assert "moe_router_dtype fp32" in asked(few).failure
    assert asked(few + "--moe_router_dtype fp32").failure == ""
    assert "moe_router_dtype fp32" in asked(divided + "--moe_router_dtype fp64").failure


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("--tensor_model_parallel_size 2", "tensor_model_parallel_size"),
        ("--context_parallel_size 2 --cp_comm_type all_gather", "cp_comm_type"),
        ("--recompute_granularity selective --recompute_modules mlp", "recompute_modules"),
        (
            "--recompute_granularity full --recompute_method uniform --recompute_num_layers 2",
            "recompute_num_layers",
        ),
        ("--recompute_granularity full --recompute_method block", "recompute_method"),
        ("--cross_entropy_loss_fusion true", "cross_entropy_loss_fusion"),
        ("--transformer_impl local", "transformer_impl"),
        ("--optimizer sgd", "optimizer"),
        ("--optimizer_cpu_offload true", "optimizer_cpu_offload"),
        ("--fp8 e4m3 --fp8_recipe custom", "fp8_recipe"),
        ("--fp8 e4m3 --fp8_recipe mxfp8 --fp8_param true", "fp8_param"),
        ("--mtp_num_layers 1", "mtp_num_layers"),
        ("--quantization_bit 4", "quantization_bit"),
        ("--use_liger_kernel true", "use_liger_kernel"),
        ("--additional_configs conf.json", "additional_configs"),
        ("--stage dpo", "stage"),
        ("--template qwen2_vl", "template"),
        ("--moe_new_kernel true", "moe_new_kernel"),
    ],
)
def test_what_is_not_modelled_is_refused_by_its_key(words: str, key: str) -> None:
    """Keys that may change memory are never ignored."""
    name = words.split(maxsplit=1)[0]
    start = " ".join(f"--{each}" for each in START.split(" --")[1:] if f"--{each.split()[0]}" != name)
    checked = asked(f"{START.split(' --', maxsplit=1)[0]} {start} {words}")
    assert key in checked.failure
    assert checked.exit_code == ExitCode.NOT_MODELLED


@pytest.mark.parametrize("name", ["bf16", "use_distributed_optimizer", "bias_activation_fusion"])
def test_switches_that_are_off_where_nothing_is_said(name: str) -> None:
    """Only what they switch on was read."""
    assert f"say {name} true" in asked(START.replace(f"--{name} true ", "")).failure


def test_what_is_computed_again_has_three_words() -> None:
    """Megatron stops at others."""
    assert "must be full, selective or none" in asked(f"{START} --recompute_granularity everything").failure


def test_models_that_it_stops_at() -> None:
    """Those that LLaMA-Factory does not list, and heads whose width its templates leave out."""
    assert "no such model" in asked(EXPERTS.replace("Qwen3-30B-A3B", "Qwen1.5-MoE-A2.7B")).failure
    nemo = START.replace("Qwen/Qwen3-8B", "mistralai/Mistral-Nemo-Instruct-2407")
    assert "another width" in asked(nemo).failure


def test_what_a_fix_writes() -> None:
    """Its own key for layers that run again, and its variable before the command."""
    rule = RULES["llama-factory-mca"]["gradient_checkpointing"]
    assert rule({}, True) == {("recompute_granularity",): "full"}
    line = launch_line("llama-factory-mca", Launch("train.yaml", gpus=8))
    assert line == "USE_MCA=1 llamafactory-cli train train.yaml"
