"""The one entrance: which tool a file is for, and what is said where none can be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.read import TOOLS, recognise
from planner.configs.yaml_or_json import read_document
from planner.errors import InputFileError, UnknownNameError
from planner.intake.given.config_file import read_config_file
from tests.files import read, written

AXOLOTL = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\n"


def test_the_tool_is_told_by_keys_or_asked_for(tmp_path: Path) -> None:
    """A file that could be of several tools, or of none, asks for --tool; an unknown tool lists the known."""
    with pytest.raises(
        InputFileError,
        match=r"do not say which tool it is for: say it with --tool, one of plan, llama-factory",
    ):
        read(tmp_path, "colour: red\n")
    with pytest.raises(
        InputFileError, match=r"those of llama-factory and of axolotl: say which: --tool llama-factory"
    ):
        read(tmp_path, "adapter: lora\nbase_model: a\nstage: sft\ncutoff_len: 8\n")
    # Axolotl stops without its base_model, so other programs' keys of the same names do not make it theirs.
    with pytest.raises(InputFileError, match="do not say which tool it is for"):
        read(tmp_path, "micro_batch_size: 1\nreward_model: a\n")
    # Nor is one that names a model alone, beside tables of its own.
    with pytest.raises(InputFileError, match="do not say which tool it is for"):
        read(tmp_path, "base_model: Qwen/Qwen2.5-0.5B\ntraining: {per_device_train_batch_size: 4}\n")
    with pytest.raises(UnknownNameError, match="unknown tool 'axolotle'; nearest: axolotl"):
        read_config_file(written(tmp_path, AXOLOTL), "axolotle")
    assert read_config_file(written(tmp_path, "model_name_or_path: gpt2\n"), "trl").tool == "TRL 1.16.0"
    recipe = "model_name_or_path: gpt2\nper_device_train_batch_size: 2\nmax_seq_length: 512\n"
    assert read(tmp_path, recipe).tool == "TRL 0.9 to 0.19"
    assert read(tmp_path, "per_device_train_batch_size: 2\n").tool == "Transformers 5.23.0"


def test_no_key_marks_files_of_two_tools() -> None:
    """Else their order would decide which one a file is for."""
    names = list(TOOLS)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            assert not TOOLS[name].marks & TOOLS[other].marks, (name, other)


def test_a_train_dataset_beside_a_named_model_is_not_of_llama_factorys_v1(tmp_path: Path) -> None:
    """Its files name their model ``model``."""
    keys = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "train_dataset": "x", "dtype": "bfloat16"}
    file = tmp_path / "x.yaml"
    file.write_text("\n".join(f"{name}: {value}" for name, value in keys.items()), encoding="utf-8")
    assert recognise(read_document(file)).name == "trl"
