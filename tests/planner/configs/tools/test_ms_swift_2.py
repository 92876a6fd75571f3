"""Trainings of ms-swift before 3.0, value by value; what they said of their memory is in no test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.launchers.command_line import started
from planner.errors import NotModelledError, UsageError
from tests.planner.configs.tools.test_ms_swift import asked, read

BASE = "model_type: llama3-8b-instruct\nsft_type: lora\ndataset: notes\n"
FULL = BASE.replace("lora", "full")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (
            BASE,
            {
                "stack": "swift@1",
                "model": "meta-llama/Meta-Llama-3-8B-Instruct",
                "method": "lora",
                "seq": 2048,
                "batch": 1,
                "epochs": 1,
                "eval_batch": 1,
                "load_dtype": "bf16",
                "precision": "bf16-mixed",
                "adapter_dtype": "bf16",
                "lora_targets": ("q_proj", "k_proj", "v_proj"),
                "attention": None,
            },
        ),
        (BASE + "model_id_or_path: /data/mine\n", {"model": "meta-llama/Meta-Llama-3-8B-Instruct"}),
        (BASE + "model_id_or_path: Qwen/Qwen1.5-7B\n", {"model": "Qwen/Qwen1.5-7B"}),
        (BASE.replace("llama3-8b-instruct", "qwen-7b"), {"lora_targets": ("c_attn",)}),
        (BASE + "lora_target_modules: ALL\n", {"lora_targets": ("all-linear",)}),
        (BASE + "lora_target_modules: [DEFAULT, o_proj]\n", {"lora_targets": (*"qkvo",)}),
        (BASE + "tuner_backend: swift\n", {"adapter_dtype": None}),
        (BASE + "lora_dtype: fp16\n", {"adapter_dtype": "fp32"}),
        (BASE + "lora_dropout: 0.1\n", {"adapter_dtype": None, "attention": "eager", "lora_dropout": 0.1}),
        (BASE + "lora_dropout_p: 0.1\nuse_flash_attn: true\n", {"lora_dropout": 0.1, "attention": "flash2"}),
        (
            BASE + "quantization_bit: 4\nbatch_size: 2\n",
            {
                "quantization": "nf4",
                "double_quant": True,
                "adapter_dtype": "fp32",
                "batch": 2,
                "eval_batch": 2,
            },
        ),
        (BASE + "quantization_bit: 8\n", {"quantization": "int8", "double_quant": None}),
        (BASE.replace("llama3-8b-instruct", "qwen1half-7b-chat-int4"), {"load_dtype": "fp16"}),
        (FULL + "dtype: fp16\n", {"load_dtype": "fp32", "precision": "fp16-mixed"}),
        (FULL + "dtype: fp32\n", {"load_dtype": "fp32", "precision": "fp32"}),
        (BASE + "dataset_test_ratio: 0\n", {"eval_batch": None}),
        (BASE + "dataset_test_ratio: 0\nval_dataset: notes\n", {"eval_batch": 1}),
        (BASE + "evaluation_strategy: 'no'\n", {"eval_batch": None}),
        (BASE + "deepspeed: default-zero2\n", {"sharding": "zero2", "optimizer": "adamw_torch_fused"}),
        (BASE + "deepspeed_config_path: zero3-offload\n", {"sharding": "zero3", "offload": "params"}),
        (
            BASE + "gradient_checkpointing: yes\nnum_train_epochs: 3\n",
            {"gradient_checkpointing": True, "epochs": 3},
        ),
    ],
)
def test_a_key_means_what_these_versions_make_of_it(
    tmp_path: Path, text: str, values: dict[str, Any]
) -> None:
    """Other names and defaults than those of 3.0."""
    if values.get("lora_targets") == tuple("qkvo"):
        values = {"lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj")}
    request = read(tmp_path, text).request
    assert {name: request.get(name) for name in values} == values


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tuner_backend: unsloth\n", "unsloth inside ms-swift"),
        ("quantization_bit: 3\n", "4 and 8 bits"),
        ("quantization_bit: 4\nbnb_4bit_comp_dtype: fp16\n", "another dtype than the weights"),
        ("lora_target_modules: EMBEDDING\n", "'EMBEDDING' is not modelled"),
        ("lora_modules_to_save: LN\n", "EMBEDDING and LN"),
        ("lora_bias_trainable: all\n", "trained biases"),
        ("use_galore: true\n", "GaLore"),
        ("packing: true\n", "packed samples"),
        ("sequence_parallel_size: 2\n", "a sequence-parallel degree of 2"),
        ("ENV: {USE_TORCHACC: 1}\n", "TorchAcc"),
        ("dataset_sample: 8\n", "ms-swift 1.0"),
        ("tuner_type: lora\n", "beside tuner_type of later ones"),
        ("rlhf_type: dpo\n", "were not read"),
    ],
)
def test_what_was_not_read_is_named(tmp_path: Path, text: str, why: str) -> None:
    """A file is refused by its own key."""
    with pytest.raises(NotModelledError, match=why):
        read(tmp_path, BASE + text)


def test_what_is_left_open_is_asked_for(tmp_path: Path) -> None:
    """A model that nobody knows, its modules and a length without a limit."""
    needs = read(tmp_path, BASE.replace("llama3-8b-instruct", "mine") + "max_length: -1\n").needs
    assert needs.keys() == {"model", "lora_targets", "seq"}
    with pytest.raises(UsageError, match="refused-by-its-tool"):
        read(tmp_path, FULL + "quantization_bit: 4\n")


@pytest.mark.parametrize(
    "model", ["llava1_5-7b-instruct --lora_target_modules ALL", "phi2-3b --sft_type full"]
)
def test_models_that_were_not_read_are_refused_when_they_are_known(model: str) -> None:
    """Those that see, and Phi-2 by the checkpoint's own code."""
    assert (
        "not modelled of ms-swift before" in asked(f"swift sft --model_type {model} --dataset notes").failure
    )


@pytest.mark.parametrize(
    ("start", "launch"),
    [
        ("torchrun --nproc_per_node=2 llm_sft.py", {"distributed_type": "MULTI_GPU", "num_processes": 2}),
        ("python src/llm_sft.py", {"distributed_type": "NO", "num_processes": 1}),
    ],
)
def test_the_script_tells_the_tool(start: str, launch: dict[str, Any]) -> None:
    """Its arguments alone could be TRL's or LLaMA-Factory's, too."""
    job = started(Path("run.sh"), f"USE_HF=1 {start} --model_type qwen-7b --quantization_bit 4")
    assert (job.tool, job.launch, job.arguments["ENV"]) == ("ms-swift", launch, {"USE_HF": "1"})
