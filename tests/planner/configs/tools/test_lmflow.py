"""LMFlow's ``examples/finetune.py``: what its arguments mean, beside its own run, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.api.checks import check_job, command_job
from planner.api.files import CheckOptions
from planner.configs.said_by_file import Reading
from planner.domain.scenario import Scenario
from planner.errors import ExitCode, NotModelledError, UsageError
from planner.intake.given.request import from_flags
from planner.predicting import estimate
from planner.report.check.checked import Checked
from planner.units import GIB
from tests.files import reading_of

FSDP = (
    "--use_fsdp --fsdp_sharding_strategy FULL_SHARD --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP "
    "--fsdp_backward_prefetch BACKWARD_PRE --fsdp_use_orig_params true"
)
LAUNCH = f"accelerate launch --num_processes 8 --mixed_precision bf16 {FSDP} examples/finetune.py"
# As scripts/run_finetune*.sh of f3597dba have them.
REST = (
    "--model_name_or_path meta-llama/Llama-3.2-3B-Instruct --trust_remote_code 0 --dataset_path data/alpaca "
    "--output_dir out --overwrite_output_dir --conversation_template llama3 --disable_group_texts 1 "
    "--num_train_epochs 1 --block_size 512 --per_device_train_batch_size 1 --gradient_accumulation_steps 1 "
    "--learning_rate 2e-5 --lr_scheduler_type cosine --bf16 --torch_dtype bfloat16 "
    "--validation_split_percentage 0 --logging_steps 20 --do_train --ddp_timeout 72000 --save_steps 5000 "
    "--use_flash_attention 0 --gradient_checkpointing 0 --dataloader_num_workers 8 --report_to wandb "
    "--run_name a --seed 42"
)
LORA = "--use_lora 1 --lora_r 8 --lora_alpha 32 --lora_dropout 0.1"
QLORA = "--use_qlora 1 --quant_bit 4 --lora_r 8 --lora_alpha 32 --lora_dropout 0.1"
OLD = "--overwrite_output_dir"
JOINED = "--block_size 2048 --disable_group_texts 0"
PLAIN = {"model_name_or_path": "gpt2", "dataset_path": "data", "block_size": 256, "bf16": True}


def checked(command: str, gpu: str = "a100-80-sxm:8") -> Checked:
    """The answer to a command."""
    return check_job(command_job(command, CheckOptions()), from_flags({"gpu": gpu}))


def scenario(command: str, gpu: str = "a100-80-sxm:8") -> Scenario:
    """The job of a command that is answered."""
    found = checked(command, gpu)
    assert found.subject is not None, found.failure
    assert not any("unknown" in text for _, text in found.remarks)
    return found.subject.scenario


def read(folder: Path, table: dict[str, Any]) -> Reading:
    """What such a file of arguments says."""
    return reading_of(folder, table, "train.json")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("", ("full", "none", None)),
        (LORA, ("lora", "none", (8, 0.1))),
        (QLORA, ("lora", "nf4", (8, 0.1))),
        (f"{QLORA} --quant_type fp4 --double_quant 0", ("lora", "fp4", (8, 0.1))),
        ("--use_lora 1", ("lora", "none", (8, 0.1))),
        ("--use_lora 0 --lora_r 4", ("full", "none", None)),
    ],
)
def test_its_own_scripts_value_by_value(arguments: str, meant: tuple[Any, ...]) -> None:
    """scripts/run_finetune.sh and its kin, which only Transformers 4 runs (``overwrite_output_dir``)."""
    job = scenario(f"{LAUNCH} {REST} {arguments}")
    recipe, numerics = job.recipe, job.recipe.numerics
    adapter = None if recipe.adapter is None else (recipe.adapter.rank, recipe.adapter.dropout)
    assert (recipe.method, numerics.quantization, adapter) == meant
    assert job.stack.id == "lmflow@4"
    assert (recipe.sharding.name, job.hardware.gpus_per_node, job.model.id) == ("fsdp1", 8, "llama-3.2-3b")
    assert (numerics.precision, numerics.load_dtype, recipe.attention) == ("bf16-mixed", "bf16", "sdpa")
    batch = recipe.batch
    assert (batch.seq_len, int(batch.micro_batch), int(batch.grad_accum)) == (512, 1, 1)
    assert (batch.padding, recipe.gradient_checkpointing) == ("max_length", False)
    if numerics.quantization != "none":
        assert (numerics.double_quant, numerics.quant_storage) == ("double_quant 0" not in arguments, "bf16")


@pytest.mark.parametrize(
    ("arguments", "allocated", "reserved"),
    [
        ("--block_size 512", 10.208, 10.647),
        ("--block_size 1024 --per_device_train_batch_size 2 --use_lora 1", 7.982, 8.549),
        ("--block_size 1024 --per_device_train_batch_size 2 --use_qlora 1", 6.637, 7.233),
        ("--block_size 1024 --per_device_train_batch_size 2 --use_qlora 1 --quant_bit 8", 7.829, 8.422),
        ("--block_size 2048 --use_qlora 1 --lora_r 64 --gradient_checkpointing 1", 4.126, 4.793),
        ("--block_size 512 --use_lisa 1 --lisa_activated_layers 8 --lisa_interval_steps 1", 9.302, 9.943),
        (
            f"{JOINED} --per_device_train_batch_size 2 --gradient_checkpointing 1 --optim adamw_bnb_8bit",
            12.303,
            15.713,
        ),
        (f"{OLD} --block_size 512", 10.208, 10.666),
        (f"{OLD} --block_size 1024 --per_device_train_batch_size 2 --use_qlora 1", 6.636, 7.240),
        (f"{OLD} --block_size 2048 --use_lora 1 --gradient_checkpointing 1", 5.405, 6.049),
    ],
)
def test_bytes_beside_its_own_run(arguments: str, allocated: float, reserved: float) -> None:
    """GiB of ``measure trace`` of ``examples/finetune.py`` at f3597dba, on texts longer than a block.

    Transformers 5.23 and bitsandbytes 0.50.2, with ``overwrite_output_dir`` 4.57.1 and 0.48.2; PEFT 0.21.2,
    torch 2.13.  Where nothing is checkpointed the first
    layer keeps what it reads, because LMFlow makes that require a gradient.
    """
    command = "python examples/finetune.py --model_name_or_path meta-llama/Llama-3.2-1B-Instruct --bf16"
    rest = "--dataset_path data --per_device_train_batch_size 1 --torch_dtype bfloat16 --report_to none"
    memory = estimate(scenario(f"{command} {rest} {arguments}", "a100-80-sxm")).memory
    assert float(memory.allocated_peak_bytes) / GIB == pytest.approx(allocated, rel=0.0005)
    assert float(memory.reserved_peak_bytes) / GIB == pytest.approx(reserved, rel=0.006)


@pytest.mark.parametrize(
    ("arguments", "allocated", "reserved"),
    [
        ("", 4.173, 7.201),
        ("--block_size 1024 --per_device_train_batch_size 2 --use_lora 1 --lora_r 8", 6.560, 7.264),
    ],
)
def test_bytes_of_a_rank_under_fsdp(arguments: str, allocated: float, reserved: float) -> None:
    """GiB of one of eight ranks, launched with configs/accelerate_fsdp_config.yaml of f3597dba."""
    rest = REST.replace("--overwrite_output_dir ", "").replace("Llama-3.2-3B", "Llama-3.2-1B")
    memory = estimate(scenario(f"{LAUNCH} {rest} {arguments}")).memory
    assert float(memory.allocated_peak_bytes) / GIB == pytest.approx(allocated, rel=0.0005)
    assert float(memory.reserved_peak_bytes) / GIB == pytest.approx(reserved, rel=0.006)


def test_lisa_runs_on_one_gpu() -> None:
    """Layers drawn anew; FSDP divides what is trained before they are."""
    drawn = "--use_lisa 1 --lisa_activated_layers 1 --lisa_interval_steps 20"
    job = scenario(f"python examples/finetune.py {REST} {drawn}", "a100-80-sxm")
    assert job.recipe.train_layers == ("drawn:1@20", "embed", "norm", "head")
    for beside in (f"{LAUNCH} {REST} {drawn}", f"python examples/finetune.py {REST} {drawn} {LORA}"):
        found = checked(beside)
        assert found.exit_code == ExitCode.NOT_MODELLED
        assert "LISA beside" in found.failure


def test_deepspeed_and_its_age(tmp_path: Path) -> None:
    """The file that ``--deepspeed`` names, in the manner of configs/deepspeed/zero3.json of f3597dba, beside
    a run of one of eight ranks; without an argument of Transformers 4 it is today's stack.
    """
    zero = {
        "bf16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "overlap_comm": True,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_max_live_parameters": 2e10,
            "stage3_max_reuse_distance": 2e10,
        },
    }
    (tmp_path / "zero3.json").write_text(json.dumps(zero), encoding="utf-8")
    rest = REST.replace("--overwrite_output_dir ", "").replace("Llama-3.2-3B", "Llama-3.2-1B")
    job = scenario(f"deepspeed --num_gpus 8 examples/finetune.py {rest} --deepspeed {tmp_path}/zero3.json")
    assert (job.stack.id, job.recipe.sharding.name, job.hardware.gpus_per_node) == ("lmflow", "zero3", 8)
    memory = estimate(job).memory
    assert float(memory.allocated_peak_bytes) / GIB == pytest.approx(4.184, rel=0.0005)
    assert float(memory.reserved_peak_bytes) / GIB == pytest.approx(5.682, rel=0.0005)


@pytest.mark.parametrize(
    ("said", "seq", "padding"),
    [
        ({}, 256, None),
        ({"model_max_length": 128}, 128, None),
        ({"model_max_length": 128, "disable_group_texts": 0}, 128, "packed"),
        (
            {"model_max_length": 128, "disable_group_texts": False, "truncate_to_model_max_length": False},
            256,
            "packed",
        ),
        ({"block_size": None, "model_max_length": 64, "disable_group_texts": True}, 64, None),
    ],
)
def test_the_length_of_rows(tmp_path: Path, said: dict[str, Any], seq: int, padding: str | None) -> None:
    """tokenization/hf_decoder_model.py blocking, pipeline/finetuner.py group_text."""
    found = read(tmp_path, PLAIN | said)
    assert (found.tool_name, found.value("seq"), found.value("padding")) == ("lmflow", seq, padding)


def test_without_a_length_the_tokenizer_decides(tmp_path: Path) -> None:
    """It is asked for."""
    found = read(tmp_path, PLAIN | {"block_size": None, "disable_group_texts": True})
    assert "say --seq" in found.needs["seq"]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("use_customized_optim", 1, "LMFlow's own optimizer 'sign_sgd' is not modelled"),
        ("arch_type", "text_regression", "other than decoder_only"),
        ("config_name", "other/model", "the configuration of another model"),
        ("config_overrides", "n_embd=10", "from scratch"),
        ("do_rope_scaling", 1, "positions of LMFlow's own"),
        ("image_encoder_name_or_path", "a/b", "models that see"),
        ("lora_rank", 8, "unknown key, whose name"),
        ("label_smoothing_factor", 0.1, "smoothed labels"),
        ("do_train", False, "does not train"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path: Path, key: str, value: object, text: str) -> None:
    """Each by a sentence that names the key."""
    with pytest.raises(NotModelledError, match=text) as error:
        read(tmp_path, PLAIN | {key: value})
    assert f"train.json:{key}" in str(error.value)


def test_bases_that_it_quantised_before_are_refused(tmp_path: Path) -> None:
    """``bits`` is the name up to March 2025, when PEFT prepared such a base; today other numbers stop it."""
    with pytest.raises(NotModelledError, match="say quant_bit where it is today's"):
        read(tmp_path, PLAIN | {"use_qlora": True, "bits": 4})
    with pytest.raises(UsageError, match=r"it is 4 or 8 \[refused-by-its-tool\]"):
        read(tmp_path, PLAIN | {"use_qlora": True, "quant_bit": 3})
    assert read(tmp_path, PLAIN | {"use_qlora": True, "quant_bit": 8}).value("quantization") == "int8"


def test_its_aligners_stay_refused() -> None:
    """DPO with a reference model of LMFlow's own."""
    found = checked(f"accelerate launch examples/dpov2_train.py {REST} --reference_model_name_or_path gpt2")
    assert found.exit_code == ExitCode.NOT_MODELLED
    assert "trainer of LMFlow" in found.failure


def test_a_variable_before_the_script_may_hold_options() -> None:
    """scripts/archive/run_finetune.sh: ``deepspeed ${deepspeed_args} examples/finetune.py``."""
    found = checked(f"deepspeed $ARGS examples/finetune.py {REST}")
    assert "'$ARGS' may hold options of the launcher: write them out" in found.failure
