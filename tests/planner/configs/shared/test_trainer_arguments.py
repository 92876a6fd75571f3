"""Keys of the Trainer's arguments that change what stays reserved, in files of two tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.errors import NotModelledError
from planner.intake.given.config_file import read_config_file, with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from tests.files import filled, written

FACTORY = "model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: full\ntemplate: qwen\nbf16: true\n"
AXOLOTL = "base_model: Qwen/Qwen2.5-0.5B\nbf16: true\ndatasets: []\nsequence_len: 1024\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FACTORY, "full_unless_checkpointed"),
        (FACTORY + "ddp_find_unused_parameters: false\n", "never"),
        (FACTORY + "ddp_find_unused_parameters: true\n", "always"),
        (AXOLOTL, "never"),
        (AXOLOTL + "ddp_find_unused_parameters: true\n", "always"),
    ],
)
def test_whether_ddp_looks_for_unused_parameters(text: str, expected: str, tmp_path: Path) -> None:
    """As the file says, else as the tool does."""
    path = written(tmp_path, text)
    given = with_flags(read_config_file(path, None, Beside()), from_flags({"gpu": "a100-80-sxm:2"}))
    assert resolve(given).stack.ddp_finds_unused == expected


TRL = "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_peft: false\n"
OF_0_8 = AXOLOTL + "local_rank:\n"
SHARDED = "fsdp_config: {fsdp_state_dict_type: FULL_STATE_DICT}\n"


@pytest.mark.parametrize(
    ("text", "sharding"),
    [
        (FACTORY + "deepspeed: ''\n", "ddp"),
        (TRL + "deepspeed: {}\n", "ddp"),
        (TRL + "fsdp: ''\n", "ddp"),
        (AXOLOTL + "deepspeed: []\nfsdp: []\n", "ddp"),
        (AXOLOTL + "fsdp_config: {}\n", "ddp"),
        (AXOLOTL + "fsdp: []\n" + SHARDED, "fsdp1"),
        (OF_0_8 + "fsdp: []\n", "ddp"),
        (OF_0_8 + SHARDED, "ddp"),
        (OF_0_8 + "fsdp: [full_shard]\n" + SHARDED, "fsdp1"),
    ],
)
def test_an_empty_key_shards_nothing(text: str, sharding: str, tmp_path: Path) -> None:
    """Trainers ask whether a key is true; up to Axolotl 0.11 ``fsdp_config`` alone is not asked."""
    path = written(tmp_path, text)
    given = with_flags(read_config_file(path, None, Beside()), from_flags({"gpu": "a100-80-sxm:2"}))
    assert resolve(given).recipe.sharding.name == sharding


@pytest.mark.parametrize("name", ["activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"])
def test_every_how_many_layers_one_is_checkpointed(name: str, tmp_path: Path) -> None:
    """Transformers 5.23 takes it by both names; layers between keep what they save."""
    path = written(tmp_path, f"{TRL}{name}: {{every_n_layers: 4}}\n")
    recipe = filled(read_config_file(path), {"gpu": "a100-80-sxm"}).recipe
    assert (recipe.gradient_checkpointing, recipe.checkpoint_every) == (True, 4)


def test_checkpoints_in_host_ram_are_refused(tmp_path: Path) -> None:
    """They are another offload than TRL's."""
    path = written(tmp_path, f"{TRL}activation_checkpointing_kwargs: {{offload: true}}\n")
    with pytest.raises(NotModelledError, match="checkpoints in host RAM"):
        read_config_file(path)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("full_determinism: true\n", "full_determinism: deterministic kernels"),
        ("split_batches: true\n", "split_batches: a batch that the GPUs share"),
        ("accelerator_config: {split_batches: true}\n", "accelerator_config: a batch that the GPUs share"),
    ],
)
def test_what_the_trainer_hands_on_is_not_passed_over(line: str, sentence: str, tmp_path: Path) -> None:
    """Neither to torch (trainer_utils.py enable_full_determinism) nor to Accelerate."""
    path = tmp_path / "train.yaml"
    path.write_text(FACTORY + line.replace("true", "false"), encoding="utf-8")
    read_config_file(path, None, Beside())
    path.write_text(FACTORY + line, encoding="utf-8")
    with pytest.raises(NotModelledError, match=sentence):
        read_config_file(path, None, Beside())


def test_settings_of_accelerate_in_a_file_are_read(tmp_path: Path) -> None:
    """``accelerator_config`` may name a JSON file."""
    beside, path = tmp_path / "settings.json", tmp_path / "train.yaml"
    path.write_text(f"{FACTORY}accelerator_config: settings.json\n", encoding="utf-8")
    beside.write_text('{"split_batches": false}', encoding="utf-8")
    read_config_file(path, None, Beside())
    beside.write_text('{"split_batches": true}', encoding="utf-8")
    with pytest.raises(NotModelledError, match="a batch that the GPUs share"):
        read_config_file(path, None, Beside())
