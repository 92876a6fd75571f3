"""Versions that a notebook installs, or a requirements.txt beside a program names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.intake.given.config_file import ConfigFile, read_config_file
from tests.files import written
from tests.planner.configs.programs.test_program import TRAINER, TRL, UNSLOTH, program, read


def notebook(folder: Path, installs: str, code: str) -> ConfigFile:
    """What a notebook says that installs something first."""
    cells = [{"cell_type": "code", "source": [text]} for text in (installs, code)]
    path = written(folder, json.dumps({"cells": cells}), "train.ipynb")
    return read(path)


@pytest.mark.parametrize(
    ("installs", "stack", "versions"),
    [
        ("!pip install -U trl", "trl", None),
        ("!pip install trl==0.22.2", "trl@0.24", ("trl==0.22.2",)),
        ("%pip install 'trl==0.12.1' \\\n  peft==0.14.0", "trl@0", ("peft==0.14.0", "trl==0.12.1")),
        ("!uv pip install --system trl==1.16.0", "trl", None),
        ("!pip install sentence-transformers==2.2.2", "trl", None),
        ("# !pip install trl==0.12.1", "trl", None),
    ],
)  # fmt: skip
def test_the_version_that_is_installed_says_the_stack(
    installs: str, stack: str, versions: tuple[str, ...] | None, tmp_path: Path
) -> None:
    """The nearest of those that are known, with its other packages as they are named."""
    found = notebook(tmp_path, installs, TRL.replace("torch_dtype", "dtype"))
    assert (found.request.get("stack"), found.request.get("versions")) == (stack, versions)
    assert not any("installs" in remark.text for remark in found.remarks)


def test_a_version_that_is_not_counted_is_told(tmp_path: Path) -> None:
    """One that was not read, several of one package, and those beside Unsloth."""
    text = TRL.replace("torch_dtype", "dtype")
    for installs, said in (
        ("!pip install trl==0.7.4", "installs trl==0.7.4, and 0.15.2 counts"),
        ("!pip install trl==0.9.6\n!pip install trl==0.22.2", "installs trl at several versions, and 1.16.0"),
    ):
        found = notebook(tmp_path, installs, text)
        assert any(said in remark.text for remark in found.remarks)
    found = notebook(tmp_path, "!pip install transformers==4.56.2 trl==0.22.2", UNSLOTH)
    assert (found.request.get("stack"), found.request.get("versions")) == ("unsloth", None)
    assert any("transformers==4.56.2, and 5" in remark.text for remark in found.remarks)


def test_requirements_lie_beside_a_program_and_a_flag_wins(tmp_path: Path) -> None:
    """As a file of pip's, with comments."""
    (tmp_path / "requirements.txt").write_text("torch\ntransformers==4.37.2 # old\n", encoding="utf-8")
    path = program(tmp_path, TRAINER)
    found = read(path)
    assert found.request.get("stack") == "hf-trainer@4"
    asked = read_config_file(path, None, Beside(gpu="rtx4090", stack="hf-trainer@5"))
    assert asked.request.get("stack") == "hf-trainer@5"
