"""The wheelhouse for a machine without a network: what is asked of pip, without asking it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from measure.bundle import Target, download_command, make_bundle, requirements
from planner.errors import UsageError


def test_requirements_are_those_of_the_measure_extra() -> None:
    """The package's own needs and the extra's, less what the other machine has."""
    names = {each.partition(">")[0] for each in requirements(["torch", "NumPy"])}
    assert {"pydantic", "peft", "bitsandbytes", "psutil"} <= names
    assert not {"torch", "numpy"} & names


def test_pip_is_asked_for_the_other_machines_wheels() -> None:
    """Binary wheels only, for its Python and platform."""
    command = download_command(Path("w"), Target("3.12", "aarch64"), ["peft>=0.17"])
    assert command[command.index("--python-version") + 1] == "3.12"
    assert "--only-binary=:all:" in command
    assert "manylinux_2_28_aarch64" in command
    assert not any("x86_64" in part for part in command)
    assert command[-1] == "peft>=0.17"


def test_a_package_that_cannot_be_had_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip says is repeated in short, with the target."""
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found for peft\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(UsageError, match=r"Python 3\.9 on x86_64: ERROR: No matching distribution found for peft"):
        make_bundle(tmp_path / "w", Target("3.9", "x86_64"), [])
