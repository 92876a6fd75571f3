"""Files of open-instruct: what a key means there, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.read import read_config
from planner.configs.said_by_file import Reading
from planner.errors import NotModelledError, UsageError
from tests.files import remarks, written

EXAMPLES = Path(__file__).parents[1] / "examples"
NOW = {
    "model_name_or_path": "gpt2",
    "dataset_mixer_list": ["a/b", "1.0"],
    "max_seq_length": 512,
    "with_tracking": True,
}
OLD = {
    "model_name_or_path": "gpt2",
    "dataset_mixer": {"a/b": 1.0},
    "max_seq_length": 512,
    "checkpointing_steps": "epoch",
} | {"dataset_mix_dir": "out"}


def read(folder: Path, table: dict[str, Any], beside: Beside | None = None) -> Reading:
    """What such a file says."""
    path = written(folder, yaml.safe_dump(table))
    return read_config(path, None, beside)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("concatenated_forward", False, "a pass for the chosen and one for the rejected"),
        ("cache_logprobs_only", True, "computes log-probabilities and does not train"),
        ("total_episodes", 1000, "reinforcement learning"),
        ("max_prompt_token_length", 256, "reward models are not modelled"),
        ("reduce_loss", "sum", "a second loss beside the model's own"),
        ("additional_model_arguments", {"num_hidden_layers": 2}, "change the model's configuration"),
        ("sequence_parallel_size", 2, "a sequence-parallel degree of 2 is not modelled"),
        ("config_name", "other/model", "the configuration of another model"),
        ("cache_dataset_only", True, "does not train"),
        ("lora_targets", ["q_proj"], r"unknown key, whose name \('lora'\)"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path: Path, key: str, value: object, text: str) -> None:
    """Each by a sentence that names the key."""
    with pytest.raises(NotModelledError, match=text) as error:
        read(tmp_path, NOW | {key: value})
    assert f"train.yaml:{key}" in str(error.value)


def test_its_age_is_told_by_keys_that_it_dropped(tmp_path: Path) -> None:
    """With ``dataset_mixer`` the versions since March 2025 end at once."""
    assert read(tmp_path, NOW).value("stack") == "open-instruct"
    assert read(tmp_path, OLD).value("stack") == "open-instruct@2024"
    assert read(tmp_path, NOW | {"use_flash_attn": False}).value("attention") == "eager"


def test_adapters_of_2024_are_trained_without_checkpoints(tmp_path: Path) -> None:
    """The branch of ``gradient_checkpointing`` was not reached beside ``use_lora``; today it is."""
    adapters = {"use_lora": True, "gradient_checkpointing": True}
    old = read(tmp_path, OLD | adapters)
    assert old.value("gradient_checkpointing") is None
    assert "has no effect beside use_lora" in remarks(old)
    assert read(tmp_path, NOW | adapters).value("gradient_checkpointing") is True
    precision = Beside(accelerate=EXAMPLES / "accelerate_ddp.yaml")
    assert (
        read(tmp_path, OLD | adapters | {"use_qlora": True}, precision).value("gradient_checkpointing")
        is True
    )


def test_without_a_launch_file_its_own_script_is_counted(tmp_path: Path) -> None:
    """ZeRO-3 with bf16, unless a launch file is given or lies beside the config, or none is said."""
    own = read(tmp_path, NOW)
    assert (own.value("sharding"), own.value("precision")) == ("zero3", "bf16-mixed")
    assert own.said["sharding"].origin.startswith("default of open-instruct")
    assert "stage3_no_offloading_accelerate.conf" in remarks(own)
    given = read(tmp_path, NOW, Beside(accelerate=EXAMPLES / "accelerate_zero2.yaml"))
    assert (given.value("sharding"), given.value("precision")) == ("zero2", "bf16-mixed")
    assert read(tmp_path, NOW, Beside(deepspeed=EXAMPLES / "zero3_offload.json")).value("offload") is not None
    none = read(tmp_path, NOW, Beside(accelerate=Path("none")))
    assert none.value("sharding") is None
    assert "say --precision bf16-mixed" in none.needs["precision"]
    (tmp_path / "launch.yaml").write_text(
        (EXAMPLES / "accelerate_ddp.yaml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    found = read(tmp_path, NOW)
    assert found.value("sharding") is None
    assert found.launch == tmp_path / "launch.yaml"


def test_4_bit_bases_need_adapters_and_no_deepspeed(tmp_path: Path) -> None:
    """What its arguments' help says; the script for them says no precision, so nothing casts."""
    with pytest.raises(UsageError, match="through adapters only; say use_lora: true"):
        read(tmp_path, NOW | {"use_qlora": True})
    quantised = NOW | {"use_lora": True, "use_qlora": True}
    assert read(tmp_path, quantised).value("precision") == "bf16"
    assert "finetune_qlora_with_accelerate.sh" in remarks(read(tmp_path, quantised))
    with pytest.raises(UsageError, match="not compatible with DeepSpeed"):
        read(tmp_path, quantised, Beside(accelerate=EXAMPLES / "accelerate_zero2.yaml"))


def test_liger_loads_by_no_dtype(tmp_path: Path) -> None:
    """``AutoLigerKernelForCausalLM.from_pretrained`` gets none: that of the checkpoint today,
    fp32 under Transformers 4.
    """
    now, old = (read(tmp_path, base | {"use_liger_kernel": True}) for base in (NOW, OLD))
    assert (now.value("loss"), now.value("load_dtype")) == ("liger", "checkpoint")
    assert old.value("load_dtype") == "fp32"


def test_sizes_that_a_file_leaves_out(tmp_path: Path) -> None:
    """The defaults of its arguments; without a length the longest sample decides."""
    found = read(tmp_path, {name: value for name, value in NOW.items() if name != "max_seq_length"})
    assert [found.value(name) for name in ("batch", "grad_accum", "epochs", "method")] == [8, 1, 2, "full"]
    assert "say --seq" in found.needs["seq"]
    assert read(tmp_path, NOW | {"max_train_steps": 10}).value("epochs") is None
    assert "padded to the longest" in remarks(read(tmp_path, NOW | {"packing": True}))
    assert read(tmp_path, NOW | {"sync_each_batch": True}).switches["fsdp_no_sync"][0] == "neither"
    assert read(tmp_path, NOW | {"fused_optimizer": False}).value("optimizer") == "adamw_torch"
    assert "no effect without use_qlora" in remarks(read(tmp_path, NOW | {"use_8bit_optimizer": True}))
