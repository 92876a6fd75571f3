"""The wheelhouse for a machine without a network: what is asked of pip, without asking it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from measure.bundle import (
    Fetched,
    WheelTarget,
    download_command,
    install_line,
    make_bundle,
    plan_bundle,
    requirements,
)
from measure.cli.main import main
from planner.errors import UsageError
from planner.words import words


def test_requirements_are_those_of_the_measure_extra() -> None:
    """The package's own needs and the extra's."""
    names = {each.partition(">")[0] for each in requirements()}
    assert {"pydantic", "numpy", "torch", "peft", "bitsandbytes", "psutil"} <= names


def test_pip_is_asked_for_the_other_machines_wheels() -> None:
    """Binary wheels only, for its Python and platform."""
    command = download_command(
        Path("w"), WheelTarget("3.12", "aarch64"), [Fetched("peft", "0.21.2", "peft.whl")]
    )
    assert command[command.index("--python-version") + 1] == "3.12"
    assert "--only-binary=:all:" in command
    assert "manylinux_2_28_aarch64" in command
    assert not any("x86_64" in part for part in command)
    # NCCL's wheels have a tag of their own; without it pip falls back to a torch of the year before.
    assert {"manylinux_2_18_aarch64", "manylinux2014_aarch64"} <= set(command)
    assert command[-1] == "peft==0.21.2"
    assert "--no-deps" in command


def test_a_package_that_cannot_be_had_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What pip says is repeated in short, with the target."""
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found for peft\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(
        UsageError, match=r"Python 3\.9 on x86_64: ERROR: No matching distribution found for peft"
    ):
        make_bundle(tmp_path / "w", WheelTarget("3.9", "x86_64"), [])


def test_no_message_repeats_the_password_of_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes of companies have credentials in their address, and pip does not hide them everywhere."""
    complaint = f"{'x' * 400} ERROR: 401 for url: https://user:secret@index.example/simple?a=b@c"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, "", complaint))
    with pytest.raises(UsageError, match=r"https://\*\*\*@index.example/simple") as caught:
        plan_bundle(WheelTarget("3.11", "x86_64"), [])
    assert "secret" not in str(caught.value)


def test_the_name_of_a_wheel_has_no_key_of_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed addresses carry a key in their query."""
    monkeypatch.setattr("measure.bundle.requirements", lambda: ["peft"])
    report = pip_report(("peft", "0.21.2", [])).replace(".whl", ".whl?key=secret#sha256=1")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, report, ""))
    assert [each.file for each in plan_bundle(WheelTarget("3.11", "x86_64"), [])] == ["peft-0.21.2.whl"]


def pip_report(*packages: tuple[str, str, list[str]]) -> str:
    """What pip says it would install: name, version and needs of each."""
    install = [
        {
            "metadata": {"name": name, "version": version, "requires_dist": needs},
            "download_info": {"url": f"https://host/a/{name}-{version}.whl"},
        }
        for name, version, needs in packages
    ]
    return json.dumps({"version": "1", "install": install})


REPORT = pip_report(
    (
        "torch",
        "2.13.0",
        ["filelock", "nvidia-cublas; platform_system == 'Linux'", "optree; extra == 'optree'"],
    ),
    ("nvidia-cublas", "13.1", []),
    ("optree", "0.1", []),
    ("filelock", "4.2", []),
    ("peft", "0.21.2", ["torch>=1.13", "accelerate[fast]"]),
    ("accelerate", "1.15.0", ["torch", "filelock", "speed; extra == 'fast'", "slow; extra == 'late'"]),
    ("speed", "1.0", ["accelerate[fast]"]),
    ("slow", "1.0", []),
    ("old-typing", "1.0", []),
    ("psutil", "7.2.2", ["old_typing; python_version < '3.12'"]),
)


@pytest.mark.parametrize(
    ("without", "python", "names"),
    [
        (["torch", "deepspeed"], "3.12", "accelerate filelock peft psutil speed"),
        (["Torch"], "3.11", "accelerate filelock old-typing peft psutil speed"),
        ([], "3.12", "accelerate filelock nvidia-cublas peft psutil speed torch"),
    ],
)
def test_what_only_a_missing_package_needs_is_left_out_with_it(
    monkeypatch: pytest.MonkeyPatch, without: list[str], python: str, names: str
) -> None:
    """torch brings gigabytes of CUDA: where it is there already they are not fetched,
    and what others need as well is.
    """
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, REPORT, "")
    )
    assert " ".join(each.name for each in plan_bundle(WheelTarget(python, "x86_64"), without)) == names


@pytest.fixture(name="commands")
def _commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that are run, each of which answers with pip's report."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, REPORT, "")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_what_would_be_fetched_is_said_and_nothing_written(
    tmp_path: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """pip's own report, by name; the folder is not even made."""
    assert (
        main(["bundle", str(tmp_path / "w"), "--dry-run", "--python", "3.12", "--without", "torch,deepspeed"])
        == 0
    )
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("5 wheels would be fetched into")
    assert said[1] == "  accelerate 1.15.0  accelerate-1.15.0.whl"
    assert not (tmp_path / "w").exists()
    (command,) = commands
    assert command[3] == "install"
    assert {"--dry-run", "--report", "--ignore-installed", "--only-binary=:all:"} <= set(command)
    assert not any(part.startswith(("deepspeed", "torch")) for part in command)


def test_a_folder_is_filled_with_exactly_that(tmp_path: Path, commands: list[list[str]]) -> None:
    """The wheel of the package, then the planned versions;
    all that was carried is installed where something was left out.
    """
    make_bundle(tmp_path / "w", WheelTarget("3.12", "x86_64"), ["torch", "deepspeed"])
    assert [command[3] for command in commands] == ["install", "wheel", "download"]
    assert commands[2][-5:] == list(
        words("accelerate==1.15.0 filelock==4.2 peft==0.21.2 psutil==7.2.2 speed==1.0")
    )
    assert install_line(tmp_path / "w", ["torch"]) == "pip install --no-index --no-deps w/*.whl"
    assert install_line(tmp_path / "w") == "pip install --no-index --find-links w 'finetune-planner[measure]'"
