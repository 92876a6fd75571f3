"""Training files as their own tools run them: which command, which rows, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from measure.dry_run.tool_jobs import FOLDER, tool_job
from planner.errors import NotModelledError, UsageError

LLAMA_FACTORY = (
    "model_name_or_path: m\nfinetuning_type: lora\ntemplate: llama3\ndataset: mine\ncutoff_len: 64\n"
)


def written(tmp_path: Path, name: str, text: str) -> Path:
    """A file of this content."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_are_as_long_as_the_file_lets_through(tmp_path: Path) -> None:
    """The file's own data set gives way; enough rows for the steps of a dry run; all else stays."""
    path = written(
        tmp_path,
        "a.yaml",
        f"{LLAMA_FACTORY}stage: sft\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 8\n",
    )
    job = tool_job(path)
    assert job.command == ("llamafactory-cli", "train", f"{FOLDER}/train.yaml")
    assert job.n_tokens == 64
    fields = json.loads(job.files[f"{FOLDER}/train.yaml"])
    assert fields["template"] == "llama3"
    assert (fields["dataset"], fields["dataset_dir"]) == ("rows", FOLDER)
    rows = [json.loads(line) for line in job.files[f"{FOLDER}/rows.jsonl"].splitlines()]
    assert len(rows) >= 2 * 4 * 8
    assert all(len(f"{row['prompt']} {row['completion']}".split()) == 64 for row in rows)


def test_another_length_moves_the_limit(tmp_path: Path) -> None:
    """Rows that are longer than the file's limit are wanted whole."""
    job = tool_job(written(tmp_path, "a.yaml", f"{LLAMA_FACTORY}stage: dpo\n"), 100)
    assert job.n_tokens == 100
    assert json.loads(job.files[f"{FOLDER}/train.yaml"])["cutoff_len"] == 100
    assert json.loads(job.files[f"{FOLDER}/dataset_info.json"])["rows"]["ranking"] is True


def test_the_name_of_a_file_says_the_trainer_of_trl(tmp_path: Path) -> None:
    """A file of TRL does not say whether it is for SFT or DPO; where its name does not either,
    that is asked.
    """
    text = "model_name_or_path: m\ndataset_name: d\nuse_peft: true\nlora_r: 8\nmax_length: 32\n"
    job = tool_job(written(tmp_path, "my_dpo.yaml", text))
    assert job.command[:2] == ("trl", "dpo")
    assert set(json.loads(job.files[f"{FOLDER}/rows/train.jsonl"].splitlines()[0])) == {
        "prompt",
        "chosen",
        "rejected",
    }
    with pytest.raises(UsageError, match="trl sft --config"):
        tool_job(written(tmp_path, "train.yaml", text))


def test_what_generates_text_is_refused(tmp_path: Path) -> None:
    """PPO has no fixed rows, and tools that are not started by themselves are named."""
    with pytest.raises(NotModelledError, match="generates text"):
        tool_job(written(tmp_path, "a.yaml", f"{LLAMA_FACTORY}stage: ppo\n"))
    with pytest.raises(NotModelledError, match="Axolotl"):
        tool_job(
            written(
                tmp_path,
                "b.yaml",
                "base_model: m\nsequence_len: 64\nadapter: lora\ndatasets: []\nmicro_batch_size: 1\n",
            )
        )
