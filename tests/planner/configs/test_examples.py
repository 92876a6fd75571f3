"""Config files of other tools: each example means the same job as the flags that say it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.api.files import flags_of
from planner.configs.launchers.fsdp_keys import Beside
from planner.intake.given.config_file import ConfigFile, read_config_file, with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from tests.files import bare, filled
from tests.jobs import resolved, typed

EXAMPLES = Path(__file__).parent / "examples"
A100 = {"gpu": "a100-80-sxm:8"}


def read(name: str, **beside: str) -> ConfigFile:
    """One of the examples, with other examples beside it."""
    return read_config_file(
        EXAMPLES / name, None, Beside(**{flag: EXAMPLES / other for flag, other in beside.items()})
    )


CASES: list[tuple[str, dict[str, str], dict[str, Any], str]] = [
    (
        "llama_factory_qlora.yaml",
        {},
        {"gpu": "4090"},
        (
            "--stack llama-factory --model llama-3.1-8b --method qlora --lora-rank 16 --quant-storage bf16 "
            "--seq 4096 --batch 2 --grad-accum 8 --epochs 2 --precision bf16-mixed --attention flash2 "
            "--lora-targets all-linear"
        ),
    ),
    (
        "llama_factory_full_zero3.yaml",
        {},
        A100,
        (
            "--stack llama-factory --model qwen2.5-7b --method full --seq 2048 --batch 1 --grad-accum 4 "
            "--epochs 3 --precision bf16-mixed --padding packed --loss liger --sharding zero3 "
            "--offload optimizer "
            "--switches fused_norm=true;fused_mlp=true;zero_auto_buckets=true;pins_offload=true;"
            "zero3_prefetch_elements=50000000;zero3_persistence_elements=100000"
        ),
    ),
    (
        "llama_factory_v1_lora.yaml",
        {},
        A100,
        (
            "--stack llama-factory-v1 --model qwen3-4b --method lora --lora-rank 16 --lora-dropout 0.05 "
            "--lora-targets all-linear --seq 4096 --batch 2 --grad-accum 2 --epochs 3 "
            "--precision bf16-mixed --attention flash2 --padding packed --sharding fsdp "
            "--gradient-checkpointing --no-checkpoint-reentrant --switches fsdp_loads=one_by_one"
        ),
    ),
    (
        "llama_factory_badam.yaml",
        {},
        {"gpu": "4090"},
        (
            "--stack llama-factory --model llama-3-8b --method full --seq 2048 --batch 1 --grad-accum 8 "
            "--epochs 3 --precision bf16 --optimizer badam --train-layers first:1 "
            "--switches trainable_fp32=false"
        ),
    ),
    (
        "llama_factory_v1_freeze.yaml",
        {},
        A100,
        (
            "--stack llama-factory-v1 --model qwen3-4b --method full --train-layers last:2 --seq 2048 "
            "--batch 1 --grad-accum 1 --epochs 3 --precision bf16-mixed --sharding fsdp "
            "--switches frozen_layers=differentiated"
        ),
    ),
    (
        "llama_factory_mca.yaml",
        {},
        A100,
        (
            "--stack llama-factory-mca --model qwen3-8b --method full --seq 4032 --batch 1 --grad-accum 8 "
            "--epochs 2 --tensor-parallel 2 --pipeline-parallel 2 --gradient-checkpointing"
        ),
    ),
    (
        "llama_factory_bridge.yaml",
        {},
        A100,
        (
            "--stack megatron --model qwen3-8b --method full --seq 4096 --batch 1 --grad-accum 8 "
            "--epochs 2 --tensor-parallel 2 --context-parallel 2 --gradient-checkpointing "
            "--switches adds_gradients=false;expandable_segments=on"
        ),
    ),
    (
        "axolotl_qlora.yml",
        {},
        {"gpu": "4090"},
        (
            "--stack axolotl --model mistral-7b-v0.1 --method qlora --quant-storage bf16 --lora-rank 64 "
            "--lora-dropout 0.05 --lora-targets all-linear --seq 8192 --padding packed --batch 2 "
            "--grad-accum 4 --epochs 3 --optimizer paged_adamw_8bit --gradient-checkpointing "
            "--checkpoint-reentrant --attention flash2"
        ),
    ),
    (
        "axolotl_full_fsdp.yml",
        {},
        A100,
        (
            "--stack axolotl@0.13 --model llama-3.2-3b --method full --seq 4096 --padding max_length "
            "--batch 1 --optimizer adamw_torch_fused --precision bf16-mixed --load-dtype bf16 "
            "--attention flash2 --loss liger --sharding fsdp --gradient-checkpointing "
            "--no-checkpoint-reentrant "
            "--switches fused_norm=true;fused_mlp=false;adapter_kernels=eager;checkpoints_twice=true"
        ),
    ),
    (
        "trl_lora.yaml",
        {},
        {"gpu": "4090"},
        (
            "--stack trl --model mistral-7b-v0.1 --method lora --quantization nf4 --no-double-quant "
            "--load-dtype bf16 --attention flash2 --lora-rank 16 --lora-dropout 0.05 "
            "--lora-targets q_proj;k_proj;v_proj;o_proj --precision bf16-mixed --batch 4 --grad-accum 2 "
            "--seq 2048 --padding packed --optimizer adamw_torch --gradient-checkpointing "
            "--no-checkpoint-reentrant --epochs 3"
        ),
    ),
    (
        "trl_2024.yaml",
        {},
        {"gpu": "4090"},
        (
            "--stack trl@0 --model mistral-7b-v0.1 --method lora --quantization nf4 --no-double-quant "
            "--load-dtype bf16 --attention flash2 --lora-rank 16 --lora-dropout 0.05 "
            "--lora-targets q_proj;v_proj --precision bf16-mixed --batch 4 --grad-accum 2 --seq 2048 "
            "--optimizer adamw_torch --loss hf --gradient-checkpointing --checkpoint-reentrant --epochs 1 "
            "--eval-batch 4 --padding packed"
        ),
    ),
    (
        "trl_defaults.yaml",
        {"accelerate": "accelerate_zero2.yaml"},
        {"gpu": "a100-80-sxm"},
        (
            "--stack trl --model qwen2.5-0.5b --method full --seq 1024 --batch 8 --grad-accum 1 --epochs 3 "
            "--precision bf16-mixed --sharding zero2 --gpus 8 --nodes 2 "
            "--switches zero12_bucket_elements=500000000;zero12_overlap=false"
        ),
    ),
    (
        "open_instruct_full.yaml",
        {},
        A100,
        (
            "--stack open-instruct@2024 --model llama-3.1-8b --method full --seq 4096 --batch 1 "
            "--grad-accum 2 --epochs 2 --precision bf16-mixed --load-dtype bf16 --attention flash2 "
            "--padding longest --gradient-checkpointing --checkpoint-reentrant "
            "--optimizer adamw_torch_fused --sharding zero3 --switches zero_auto_buckets=true"
        ),
    ),
    (
        "open_instruct_qlora.yaml",
        {},
        {"gpu": "4090", "precision": "bf16-mixed"},
        (
            "--stack open-instruct --model llama-3.1-8b --method qlora --seq 2048 --batch 2 --grad-accum 1 "
            "--epochs 2 --lora-rank 32 --lora-dropout 0.1 --optimizer paged_adamw_8bit --attention flash2 "
            "--lora-targets q_proj;o_proj;v_proj;k_proj;gate_proj;up_proj;down_proj "
            "--gradient-checkpointing --no-checkpoint-reentrant --load-dtype bf16"
        ),
    ),
    (
        "torchtune_qlora.yaml",
        {},
        {"gpu": "4090"},
        (
            "--stack torchtune-compile --model llama-3.1-8b --method lora --quantization nf4 --double-quant "
            "--quant-storage bf16 --lora-rank 16 --lora-dropout 0.0 --batch 2 --grad-accum 8 --epochs 1 "
            "--lora-targets q_proj;v_proj;o_proj;gate_proj;up_proj;down_proj --seq 2048 --padding packed "
            "--precision bf16 --adapter-dtype bf16 --optimizer adamw_torch_fused --gradient-checkpointing "
            "--offload activations --switches rotary_tables=pairs;rotary_positions=131072"
        ),
    ),
    (
        "torchtune_full.yaml",
        {},
        A100 | {"seq": 1024},
        (
            "--stack torchtune --model qwen2.5-7b --method full --batch 1 --grad-accum 1 --epochs 1 "
            "--precision bf16 --load-dtype bf16 --optimizer adamw_torch --no-gradient-checkpointing "
            "--sharding fsdp --switches rotary_tables=halves;rotary_positions=32768"
        ),
    ),
    (
        "torchtitan.toml",
        {},
        A100,
        (
            "--stack torchtitan-compile --model llama-3.1-8b --method full --batch 1 --grad-accum 2 "
            "--seq 8192 --precision bf16-mixed --load-dtype fp32 --loss hf --gradient-checkpointing "
            "--checkpoint-policy selective-op --sharding fsdp --attention sdpa "
            "--switches fsdp_reduces_fp32=true,mixture_code=torchtitan-2025"
        ),
    ),
    (
        "training_arguments.json",
        {},
        A100 | {"model": "7b", "method": "full", "seq": 512},
        (
            "--stack hf-trainer@5 --batch 4 --grad-accum 2 --optimizer adamw_8bit --precision fp16-mixed "
            "--sharding fsdp1 --epochs 1 --switches fsdp1_prefetches=false"
        ),
    ),
    (
        "deepspeed_alone.json",
        {},
        A100 | {"model": "7b", "method": "full", "seq": 512},
        (
            "--batch 2 --grad-accum 4 --precision fp16-mixed --sharding zero2 --offload optimizer "
            "--optimizer adamw_torch "
            "--switches zero12_bucket_elements=200000000;zero12_overlap=false;one_optimizer_group=true"
        ),
    ),
    (
        "unsloth_train.yaml",
        {},
        {"gpu": "4090"},
        (
            "--stack unsloth --model unsloth/llama-3-8b --method lora --quantization nf4 --double-quant "
            "--seq 4096 --batch 4 --grad-accum 2 --epochs 1 --optimizer adamw_8bit --padding packed "
            "--gradient-checkpointing --offload none --lora-rank 32 --lora-targets q_proj;v_proj"
        ),
    ),
    (
        "lmflow_qlora.json",
        {},
        {"gpu": "4090"},
        (
            "--stack lmflow --model llama-3.2-3b --method lora --quantization nf4 --double-quant "
            "--quant-storage bf16 --seq 512 --batch 2 --grad-accum 4 --epochs 1 --lora-rank 16 "
            "--lora-targets peft-default --load-dtype bf16 --precision bf16-mixed "
            "--no-gradient-checkpointing"
        ),
    ),
    (
        "job.toml",
        {},
        {},
        "--model 7b --method qlora --seq 1024 --gpu 4090",
    ),
]


@pytest.mark.parametrize(("name", "beside", "flags", "meant"), CASES, ids=[case[0] for case in CASES])
def test_an_example_is_the_job_of_its_flags(
    name: str, beside: dict[str, str], flags: dict[str, Any], meant: str
) -> None:
    """A file with flags beside it resolves to the very scenario that flags alone ask for,
    and leaves no key unknown.
    """
    config = read(name, **beside)
    scenario = filled(config, flags)
    assert bare(scenario) == bare(resolved(flags | typed(meant)))
    assert config.ignored == []


@pytest.mark.parametrize(("name", "beside", "flags", "meant"), CASES, ids=[case[0] for case in CASES])
def test_the_flags_that_are_printed_ask_for_the_same_job(
    name: str, beside: dict[str, str], flags: dict[str, Any], meant: str
) -> None:
    """What a check prints as flags is read back to the same scenario."""
    import shlex

    import typer

    from planner.cli.app import app

    del meant
    request = with_flags(read(name, **beside), from_flags(flags))
    context = typer.main.get_command(app).make_context(
        "plan", shlex.split(flags_of(request, resolve(request))), resilient_parsing=False
    )
    said = {name: value for name, value in context.params.items() if name in request.values}
    assert bare(resolved(said)) == bare(resolve(request))


def test_every_value_names_its_file_and_key_or_the_tool_whose_default_it_is() -> None:
    """Origins are file and key, or the tool with its version and the place of the default in its source."""
    origins = {entry.name: entry for entry in filled(read("llama_factory_qlora.yaml"), A100).assumptions}
    file = EXAMPLES / "llama_factory_qlora.yaml"
    assert origins["lora_rank"].origin == f"{file}:lora_rank"
    assert origins["seq"].origin == f"{file}:cutoff_len"
    assert origins["quantization"].origin == f"{file}:quantization_bit"
    assert origins["double_quant"].origin == "default of LLaMA-Factory 0.9.5"
    assert "hparams/model_args.py" in origins["double_quant"].note
    assert origins["lora_dropout"].origin == "default:llama-factory"
    assert origins["gpu"].origin == "cli"


def test_a_value_of_a_referred_file_names_that_file() -> None:
    """A DeepSpeed file beside the config is found from it,
    and its values name it with the whole path of the key.
    """
    scenario = filled(read("llama_factory_full_zero3.yaml"), A100)
    origins = {entry.name: entry.origin for entry in scenario.assumptions}
    file = EXAMPLES / "zero3_offload.json"
    assert origins["sharding"] == f"{file}:zero_optimization.stage"
    assert origins["offload"] == f"{file}:zero_optimization.offload_optimizer"


def test_flags_win_over_the_file() -> None:
    """A flag replaces what the file says, and only that."""
    request = with_flags(read("job.toml"), from_flags({"seq": 2048, "gpu": "a100-80-sxm:2"}))
    assert (request.get("seq"), request.get("gpu"), request.get("method")) == (2048, "a100-80-sxm:2", "qlora")
