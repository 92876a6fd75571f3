"""Files of LLaMA-Factory's v1: what a key means there, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.read import read_config
from planner.configs.said_by_file import Reading
from planner.configs.writing.tools import RULES
from planner.errors import InputFileError, NotModelledError, PlannerError, UsageError
from tests.files import written

BASE = {
    "model": "Qwen/Qwen3-4B",
    "model_class": "llm",
    "cutoff_len": 2048,
    "train_dataset": "data/v1_sft_demo.yaml",
}
FSDP2 = {"dist_config": {"name": "fsdp2"}}
FLASH = {"flash_attn": "flash_attention_2"}
LORA = {
    "peft_config": {
        "name": "lora",
        "r": 16,
        "target_modules": ["q_proj", "v_proj"],
        "modules_to_save": ["lm_head"],
    }
}


def read(
    folder: Path, table: dict[str, Any], beside: Beside | None = None, tool: str | None = None
) -> Reading:
    """What such a file says."""
    path = written(folder, yaml.safe_dump(table))
    return read_config(path, tool, beside)


@pytest.mark.parametrize(
    ("added", "text"),
    [
        (LORA | {"quant_config": {"name": "bnb", "compute_dtype": "float32"}}, "4-bit products in float32"),
        ({"optim_config": {"name": "muon", "ns_steps": 6}}, "5 iterations"),
        ({"optim_config": {"name": "muon", "nesterov": False}}, "without Nesterov's momentum"),
        ({"full_determinism": True}, "deterministic kernels"),
        ({"mp_replicate_size": 2}, "replicas of FSDP's shards, a degree of 2"),
        ({"model_class": "cls"}, "models other than language models"),
        ({"kernel_config": {"name": "auto, flash-linear-attention"}}, "kernels 'flash-linear-attention'"),
        (
            {"model": "Qwen/Qwen3-VL-4B", "kernel_config": {"name": "liger_kernel"}},
            "'liger_kernel' is modelled for Qwen3 itself",
        ),
        ({"peft_config": {"name": "prompt"}}, "'prompt' is not modelled; lora, freeze and full are"),
        ({"peft_config": {"name": "lora", "use_dora": True}}, "DoRA"),
        ({"peft_config": {"name": "lora", "export_dir": "merged"}}, "merges adapters and does not train"),
        ({"dist_config": {"name": "fsdpturbo", "ep_size": 16}}, "'fsdpturbo' is not modelled"),
        ({"dist_config": {"name": "fsdp2", "ep_size": 16}}, "ep_size: a key of fsdpturbo"),
        ({"dist_config": {"name": "fsdp2", "offload_params": True, "pin_memory": False}}, "not pinned"),
        ({"train_dataset": "data/v1_rm_demo.yaml"}, "sounds like data of reward models"),
        (
            {"pref_beta": 0.1, "dist_config": {"name": "deepspeed", "config_file": "z3.json"}},
            "copies a model of DeepSpeed",
        ),
        ({"expert_parallel": 2}, "unknown key"),
        ({"dist_config": {"name": "fsdp2", "shard_experts": True}}, "unknown key"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path: Path, added: dict[str, Any], text: str) -> None:
    """Each by a sentence of its own."""
    with pytest.raises(NotModelledError, match=text):
        read(tmp_path, BASE | FSDP2 | added)


@pytest.mark.parametrize(
    ("added", "error", "text"),
    [
        ({"optim_config": {"name": "lion"}}, InputFileError, "must be muon"),
        ({"pref_beta": 0.1}, UsageError, "which FSDP2 refuses"),
        ({"pref_loss": "kto_pair"}, InputFileError, "sigmoid, orpo or simpo"),
        ({"quant_config": {"name": "bnb"}}, UsageError, "trained with adapters"),
        (LORA | {"quant_config": {"name": "bnb", "quantization_bit": 3}}, InputFileError, "4 or 8"),
        ({"cp_size": 2}, UsageError, "with flash_attn flash_attention_2 under fsdp2 alone"),
        (FLASH | {"cp_size": 2, "cp_mode": "ring"}, InputFileError, "must be ulysses"),
        ({"flash_attn": "fa2"}, InputFileError, "eager, sdpa or flash_attention_2"),
        ({"batching_strategy": "best"}, InputFileError, "dynamic_padding_free"),
        ({"init_config": {"name": "somewhere"}}, InputFileError, "init_on_rank0"),
        (
            LORA | {"init_config": {"name": "init_on_meta"}},
            UsageError,
            "does not load a base of adapters by init_on_meta",
        ),
    ],
)
def test_values_that_cannot_be_used(
    tmp_path: Path, added: dict[str, Any], error: type[PlannerError], text: str
) -> None:
    """As v1 itself refuses them."""
    with pytest.raises(error, match=text):
        read(tmp_path, BASE | FSDP2 | added)


def test_the_older_reader_sends_its_files_here(tmp_path: Path) -> None:
    """Where --tool says llama-factory all the same."""
    with pytest.raises(UsageError, match="a key of LLaMA-Factory v1: say --tool llama-factory-v1"):
        read(tmp_path, BASE | FSDP2, tool="llama-factory")


def test_precision_is_what_its_engine_makes_of_it(tmp_path: Path) -> None:
    """FSDP2 casts to bf16 unless told otherwise; without an engine nothing does, whatever ``bf16`` says."""
    assert read(tmp_path, BASE | FSDP2).value("precision") == "bf16-mixed"
    assert read(tmp_path, BASE | FSDP2 | {"bf16": False}).value("precision") == "fp32"
    assert read(tmp_path, BASE | {"bf16": True}).value("precision") == "fp32"
    assert "say it, such as --precision bf16" in read(tmp_path, BASE | LORA).needs["precision"]


def test_fsdp2_and_its_words(tmp_path: Path) -> None:
    """Sharding, offload, and where the weights are before."""
    assert read(tmp_path, BASE | FSDP2).value("sharding") == "fsdp"
    kept = read(
        tmp_path,
        BASE | {"dist_config": {"name": "fsdp2", "reshard_after_forward": False, "offload_params": True}},
    )
    assert (kept.value("sharding"), kept.value("offload")) == ("fsdp-grad-op", "optimizer+params")
    assert "fsdp_loads" not in read(tmp_path, BASE | FSDP2).switches
    on_meta = read(tmp_path, BASE | FSDP2 | {"init_config": {"name": "init_on_meta"}})
    assert on_meta.switches["fsdp_loads"][0] == "one_by_one"


def test_deepspeed_by_the_file_that_it_names_or_one_beside_it(tmp_path: Path) -> None:
    """In which auto, or nothing, means bf16; fp16 is refused there."""
    table = BASE | {
        "dist_config": {"name": "deepspeed", "config_file": "examples/deepspeed/ds_z3_config.json"}
    }
    found = read(tmp_path, table)
    assert (found.value("sharding"), found.value("precision")) == ("zero3", "bf16-mixed")
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}', encoding="utf-8"
    )
    assert read(tmp_path, table, Beside(deepspeed=tmp_path / "ds.json")).value("sharding") == "zero2"
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 2}, "fp16": {"enabled": true}}', encoding="utf-8"
    )
    with pytest.raises(UsageError, match="refuses fp16 under DeepSpeed"):
        read(tmp_path, table, Beside(deepspeed=tmp_path / "ds.json"))
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": false}}', encoding="utf-8"
    )
    with pytest.raises(NotModelledError, match="without mixed precision"):
        read(tmp_path, table, Beside(deepspeed=tmp_path / "ds.json"))


def test_batches_and_sizes(tmp_path: Path) -> None:
    """A dynamic strategy fills each micro-batch; the total batch gives the accumulation."""
    strategies = {
        "normal": None,
        "padding_free": "packed",
        "dynamic_batching": "max_length",
        "dynamic_padding_free": "packed",
    }
    for strategy, padding in strategies.items():
        assert read(tmp_path, BASE | FSDP2 | {"batching_strategy": strategy}).value("padding") == padding
    found = read(tmp_path, {"model": "Qwen/Qwen3-4B", "model_class": "llm"} | FSDP2)
    assert [found.value(name) for name in ("batch", "seq", "epochs", "grad_accum")] == [1, 2048, 3, 1]
    total = read(tmp_path, BASE | FSDP2 | {"global_batch_size": 64})
    assert total.total_batch is not None
    assert total.total_batch[0] == 64
    assert total.value("grad_accum") is None
    assert read(tmp_path, BASE | FSDP2 | {"max_steps": 10}).value("epochs") is None
    assert (
        read(tmp_path, BASE | FSDP2 | {"enable_activation_checkpointing": False}).value(
            "gradient_checkpointing"
        )
        is False
    )


def test_adapters(tmp_path: Path) -> None:
    """Rank, targets and copies of modules."""
    found = read(tmp_path, BASE | FSDP2 | LORA)
    assert [found.value(name) for name in ("method", "lora_rank", "lora_targets", "modules_to_save")] == [
        "lora", 16, ("q_proj", "v_proj"), ("lm_head",),
    ]  # fmt: skip
    with_base = read(
        tmp_path, BASE | FSDP2 | {"peft_config": {"name": "lora", "adapter_name_or_path": "out"}}
    )
    assert "whatever it was made with" in "; ".join(remark.text for remark in with_base.remarks)


def test_liger_of_v1_takes_the_place_of_torchs_cross_entropy(tmp_path: Path) -> None:
    """The logits stay whole; a model that its table does not have keeps its layers."""
    liger = {"kernel_config": {"name": "liger_kernel"}}
    switches = read(tmp_path, BASE | FSDP2 | liger).value("switches")
    assert {"fused_norm=true", "fused_mlp=true", "loss_backward=compute+compute_grad"} <= set(switches)
    other = read(tmp_path, BASE | FSDP2 | liger | {"model": "meta-llama/Llama-3.2-1B"})
    assert other.value("switches") is None
    assert any("no effect" in remark.text for remark in other.remarks)


def test_freeze_trains_some_layers_in_fp32(tmp_path: Path) -> None:
    """FSDP2 makes inputs of frozen layers require gradients; without an engine torch refuses the dtypes."""
    found = read(tmp_path, BASE | FSDP2 | {"peft_config": {"name": "freeze", "freeze_trainable_layers": 3}})
    assert (found.value("method"), found.value("train_layers")) == ("full", ("last:3",))
    assert "frozen_layers=differentiated" in found.value("switches")
    assert "trainable_fp32=false" not in found.value("switches")
    narrow = {"peft_config": {"name": "freeze", "cast_trainable_params_to_fp32": False}}
    assert "trainable_fp32=false" in read(tmp_path, BASE | FSDP2 | narrow).value("switches")
    with pytest.raises(UsageError, match="which torch refuses"):
        read(tmp_path, BASE | {"peft_config": {"name": "freeze"}})


def test_muon_is_the_optimizer_that_v1_brings_along(tmp_path: Path) -> None:
    """With its own words for the rate and the momentum, which change no memory."""
    muon = {"optim_config": {"name": "muon", "wd": 0.1, "momentum": 0.9, "adamw_betas": [0.9, 0.95]}}
    assert read(tmp_path, BASE | FSDP2 | muon).value("optimizer") == "muon"


def test_a_pair_is_one_row_of_two_halves(tmp_path: Path) -> None:
    """The data, or a key of the loss, says that pairs are trained on; a fix of the length is doubled."""
    named = read(tmp_path, BASE | FSDP2 | LORA | {"train_dataset": "data/v1_dpo_demo.yaml"})
    assert (named.value("task"), named.value("seq"), named.value("batch")) == ("dpo", 1_024, 1)
    said = read(tmp_path, BASE | FSDP2 | {"pref_loss": "simpo", "simpo_gamma": 0.5, "cutoff_len": 300})
    assert (said.value("task"), said.value("seq")) == ("simpo", 150)
    assert read(tmp_path, BASE | FSDP2).value("task") is None
    rule = RULES["llama-factory-v1"]["seq"]
    assert rule({"pref_beta": 0.1}, 512) == {("cutoff_len",): 1_024}
    assert rule(BASE, 512) == {("cutoff_len",): 512}


def test_a_quantised_base_is_packed_in_float16_unless_said(tmp_path: Path) -> None:
    """As v1 hands it to bitsandbytes; FSDP2 would cast what holds the values."""

    def found(**quant: Any) -> Reading:
        return read(tmp_path, BASE | FSDP2 | LORA | {"quant_config": {"name": "bnb", **quant}})

    plain = found()
    names = ("quantization", "double_quant", "quant_storage")
    assert [plain.value(name) for name in names] == ["nf4", True, "float16"]
    assert "linear4bit_dtype=fp16" in plain.value("switches")
    assert "which changes them" in "; ".join(remark.text for remark in plain.remarks)
    kept = found(compute_dtype="bfloat16", double_quantization=False, quantization_type="fp4")
    assert [kept.value(name) for name in names] == ["fp4", False, "bfloat16"]
    assert kept.value("switches") is None
    assert found(quantization_bit=8).value("quantization") == "int8"
    nothing = read(tmp_path, BASE | FSDP2 | {"quant_config": {"name": "auto"}})
    assert nothing.value("quantization") is None


def test_data_with_images_have_one_in_each_sample(tmp_path: Path) -> None:
    """As the name of the data says; its size is left to what the processor allows."""
    seeing = {"model": "Qwen/Qwen3.5-0.8B", "train_dataset": "data/v1_multimodal_demo.yaml"}
    found = read(tmp_path, BASE | FSDP2 | seeing)
    assert (found.value("images_per_sample"), found.value("image_size")) == (1, None)
    assert read(tmp_path, BASE | FSDP2 | {"model": "Qwen/Qwen3.5-0.8B"}).value("images_per_sample") is None


def test_gpus_divide_sequences_by_ulysses(tmp_path: Path) -> None:
    """The loss reads logits as they lie: each GPU has a part of them, and nothing is shifted."""
    found = read(tmp_path, BASE | FSDP2 | FLASH | {"cp_size": 2, "cp_mode": "ulysses"})
    assert found.value("context_parallel") == 2
    assert "loss_forward=compute+model_loss+float+log_softmax" in found.value("switches")
    assert read(tmp_path, BASE | FSDP2 | {"cp_size": 1}).value("context_parallel") is None
