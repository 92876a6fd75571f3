"""``plan check ... --trace``: the dry run beside the answer,
and instead of it where something is not modelled.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from measure.trace.trace_json import to_json
from planner.allocator.documents.summary import room_on, summarize, timeline_of
from planner.allocator.events import AllocEvent
from planner.api import measure_process
from planner.cli.main import main
from planner.units import GIB

KNOWN = """
model_name_or_path: Qwen/Qwen2.5-0.5B
finetuning_type: lora
stage: sft
template: qwen
dataset: d
bf16: true
per_device_train_batch_size: 1
"""
# Nothing is predicted of a job whose text another program scores.
UNKNOWN = KNOWN.replace("stage: sft", "stage: ppo\nreward_model: r\nreward_model_type: api")
Captured = pytest.CaptureFixture[str]


def answering(
    monkeypatch: pytest.MonkeyPatch, peak_bytes: int, limit_bytes: int = 24 * GIB, error: str = ""
) -> list[list[str]]:
    """Let the dry run find this peak, or fail; returns the commands that are run."""
    events = [AllocEvent("alloc", 1, peak_bytes, 0, "load", "weights", "empty", "embed")]
    summary = summarize(events, room_on(limit_bytes))
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        if error:
            return subprocess.CompletedProcess(command, 6, "", f"measure: {error}\n")
        return subprocess.CompletedProcess(
            command, summary.exit_code, to_json(summary, timeline_of(events, summary), ()), ""
        )

    monkeypatch.setattr(measure_process.subprocess, "run", run)
    return commands


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with one file that is modelled and one that is not."""
    monkeypatch.chdir(tmp_path)
    Path("known.yaml").write_text(KNOWN, encoding="utf-8")
    Path("unknown.yaml").write_text(UNKNOWN, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("peak_gib", "code"), [(10, 0), (23.5, 4), (25, 3)])
def test_the_dry_run_answers_where_nothing_is_predicted(
    peak_gib: float, code: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """With exit codes as of a prediction;
    so near to the limit that the CUDA context decides it is uncertain.
    """
    commands = answering(monkeypatch, int(peak_gib * GIB))
    assert main(["check", "unknown.yaml", "--gpu", "4090", "--trace", "--json"]) == code
    result = json.loads(capsys.readouterr().out)["results"][0]
    assert result["answer"] is None
    assert result["dry_run"]["exit_code"] == code
    assert {"--check=unknown.yaml", "--gpu=4090"} <= set(commands[0])


def test_a_prediction_keeps_its_exit_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The dry run stands beside it."""
    answering(monkeypatch, 25 * GIB)
    assert main(["check", "known.yaml", "--gpu", "4090", "--trace"]) == 0
    assert "DOES NOT FIT" in capsys.readouterr().out


def test_why_there_is_no_dry_run_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """And the code stays that of what is not modelled."""
    answering(monkeypatch, GIB, error="there is no program 'llamafactory-cli' here")
    assert main(["check", "unknown.yaml", "--gpu", "4090", "--trace"]) == 6
    assert "there is no program 'llamafactory-cli' here" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("flags", "says"), [((), "--gpu"), (("--gpu", "4090", "--seq", "8"), "--seq")])
def test_the_file_runs_as_it_is_on_a_named_card(
    flags: tuple[str, ...], says: str, folder: Path, capsys: Captured
) -> None:
    """Other flags say nothing to the tool."""
    assert main(["check", "known.yaml", "--trace", *flags]) == 2
    assert says in capsys.readouterr().err


LAUNCH = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"


def test_a_job_with_a_launch_file_is_not_run_without_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The prediction counts eight ranks, and the tool would run the file alone as one."""
    Path("sft.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: d\nmax_length: 512\n", encoding="utf-8"
    )
    Path("fsdp.yaml").write_text(LAUNCH, encoding="utf-8")
    commands = answering(monkeypatch, GIB)
    assert main(["check", "sft.yaml", "--gpu", "4090", "--trace"]) == 0
    assert "without fsdp.yaml" in " ".join(capsys.readouterr().out.split())
    assert not commands
    assert main(["check", "sft.yaml", "--gpu", "4090", "--accelerate", "none", "--trace"]) == 0
    assert len(commands) == 1
