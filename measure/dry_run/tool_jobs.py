"""A training file -> the command line of its tool, with rows of a known length in place of its data sets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.configs.document import read_document
from planner.configs.read import recognise
from planner.errors import NotModelledError, UsageError

FOLDER = "dry_run_stand_ins"
"""Where files that stand in for others lie, in the folder that the program sees."""
_WORDS = 1000
# As many rows as the steps of a dry run take, and never so few that a tool splits them to nothing.
_FEWEST_ROWS, _ROWS_PER_STEP = 32, 2
# Files, splits and places that lead to data, reports and copies elsewhere.
_LEFT_OUT = {
    "llama-factory": ("eval_dataset", "val_size", "tokenized_path", "max_samples", "resume_from_checkpoint",
    "eval_strategy",
                      "evaluation_strategy", "eval_steps", "media_dir", "streaming", "mix_strategy",
                      "push_to_hub"),
    "trl": ("dataset_config", "dataset_name", "dataset_train_split", "dataset_test_split", "eval_strategy",
    "eval_steps",
            "resume_from_checkpoint", "push_to_hub", "hub_model_id", "datasets", "dataset_mixture"),
}  # fmt: skip
_LIMITS = {"llama-factory": ("cutoff_len", 2048), "trl": ("max_length", 1024)}
_TRL_TASKS = ("sft", "dpo", "kto", "reward")
_PAIRS, _MARKED = ("dpo", "rm", "reward"), ("kto",)


@dataclass(frozen=True, slots=True)
class ToolJob:
    """``files`` by name below the folder that the program sees; ``n_tokens``: of each row."""

    command: tuple[str, ...]
    files: Mapping[str, str]
    n_tokens: int


def tool_job(path: Path, n_tokens: int | None = None) -> ToolJob:
    """The job of ``path`` as its own tool runs it.  ``n_tokens``: of each row;
    ``None`` for as many as the file lets through.

    Raises:
        InputFileError: the file cannot be read, or no tool can be told.
        NotModelledError: a tool that is not started yet, or a kind of training whose rows are not known.
        UsageError: the kind of training is not said.
    """
    document = read_document(path)
    tool = recognise(document)
    if tool.name not in _LIMITS:
        raise NotModelledError(
            f"a file of {tool.title} is not started by itself yet: give the whole command, measure trace "
            "--gpu 4090 -- COMMAND"
        )
    fields = {key: value for key, value in document.table.items() if key not in _LEFT_OUT[tool.name]}
    key, default = _LIMITS[tool.name]
    length = n_tokens or _whole(fields.get(key), default)
    if n_tokens is not None and key in fields:
        fields[key] = max(n_tokens, _whole(fields[key], default))
    rows = _n_rows(fields)
    if tool.name == "llama-factory":
        return _llama_factory(fields, length, rows)
    return _trl(fields, length, rows, path)


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and value > 0 else default


def _n_rows(fields: Mapping[str, Any]) -> int:
    batch = _whole(fields.get("per_device_train_batch_size"), 8) * _whole(
        fields.get("gradient_accumulation_steps"), 1
    )
    return max(_FEWEST_ROWS, batch * _ROWS_PER_STEP * 2)


def _llama_factory(fields: dict[str, Any], length: int, rows: int) -> ToolJob:
    stage = str(fields.get("stage", "sft"))
    columns, ranking = {"prompt": "prompt", "response": "completion"}, False
    if stage == "pt":
        columns = {"prompt": "text"}
    elif stage in _PAIRS:
        columns, ranking = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}, True
    elif stage in _MARKED:
        columns |= {"kto_tag": "label"}
    elif stage != "sft":
        raise NotModelledError(
            f"stage {stage} of LLaMA-Factory generates text, which a dry run cannot follow"
        )
    described = {"file_name": "rows.jsonl", "columns": columns, "ranking": ranking}
    changed = {
        "dataset": "rows",
        "dataset_dir": FOLDER,
        "output_dir": "dry_run_output",
        "report_to": "none",
        "do_train": True,
    }
    files = {
        f"{FOLDER}/dataset_info.json": json.dumps({"rows": described}),
        f"{FOLDER}/rows.jsonl": _rows(length, rows, marked=stage in _MARKED),
        f"{FOLDER}/train.yaml": json.dumps(
            {**fields, **changed, "preprocessing_num_workers": 1}, default=str
        ),
    }
    return ToolJob(("llamafactory-cli", "train", f"{FOLDER}/train.yaml"), files, length)


def _trl(fields: dict[str, Any], length: int, rows: int, path: Path) -> ToolJob:
    named = [task for task in _TRL_TASKS if task in path.stem.lower()]
    if len(named) != 1:
        said = " or ".join(f"-- trl {task} --config {path}" for task in _TRL_TASKS[:2])
        raise UsageError(
            f"the file does not say which trainer of TRL it is for: give the whole command, {said}"
        )
    task = named[0]
    changed = {
        "dataset_name": f"{FOLDER}/rows",
        "output_dir": "dry_run_output",
        "report_to": "none",
        "max_length": length,
    }
    files = {
        f"{FOLDER}/rows/train.jsonl": _rows(length, rows, marked=task in _MARKED, only=_TRL_COLUMNS[task]),
        f"{FOLDER}/train.yaml": json.dumps({**fields, **changed}, default=str),
    }
    return ToolJob(("trl", task, "--config", f"{FOLDER}/train.yaml"), files, length)


_TRL_COLUMNS = {
    "sft": ("text",),
    "dpo": ("prompt", "chosen", "rejected"),
    "reward": ("chosen", "rejected"),
    "kto": ("prompt", "completion", "label"),
}


def _rows(length: int, count: int, *, marked: bool, only: tuple[str, ...] = ()) -> str:
    """Rows of at least ``length`` words, each with a prompt of half of them, which the tool cuts."""
    lines = []
    for number in range(count):
        words = [f"w{(number * 7 + each) % _WORDS}" for each in range(length)]
        prompt, rest = " ".join(words[: length // 2]), " ".join(words[: length - length // 2])
        row: dict[str, Any] = {
            "text": " ".join(words),
            "prompt": prompt,
            "completion": rest,
            "chosen": rest,
            "rejected": rest,
        }
        if marked:
            row["label"] = number % 2 == 0
        lines.append(json.dumps({key: value for key, value in row.items() if not only or key in only}))
    return "\n".join(lines) + "\n"
