"""``plan ... --trace``: both instruments row by row, and every way in which the trace can fail."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from measure.trace.trace_json import to_json
from planner.allocator.documents.summary import summarize, timeline_of
from planner.allocator.documents.trace_document import TraceDocument
from planner.allocator.events import AllocEvent, write_jsonl
from planner.api import bounded, measure_process
from planner.cli import trace_process
from planner.cli.main import main
from planner.cli.trace_process import trace_arguments
from planner.domain.term import ALLOCATED_TERM_ORDER
from planner.predicting import estimate
from planner.report.trace.comparison import put_beside
from planner.units import MIB
from tests.extras import needs
from tests.files import written
from tests.jobs import resolved

JOB = ["--model", "7b", "--method", "qlora", "--gpu", "4090", "--seq", "512"]
# A trace of four blocks: the second phase starts with more than it ever holds itself.
EVENTS = [
    AllocEvent("alloc", 1, 12 * MIB, 0, "load", "weights", "empty", "embed"),
    AllocEvent("alloc", 2, 30 * MIB, 0, "forward", "saved_activations", "add", "layers.0"),
    AllocEvent("free", 2, 30 * MIB, 0, "loss"),
    AllocEvent("alloc", 3, 2 * MIB, 0, "loss", "logits_and_loss", "mm", "head"),
]
DOCUMENT = to_json(summarize(EVENTS), timeline_of(EVENTS, summarize(EVENTS)), ())
Captured = pytest.CaptureFixture[str]


def answer(monkeypatch: pytest.MonkeyPatch, code: int, stdout: str = "", stderr: str = "") -> list[list[str]]:
    """Let the trace answer this; returns the commands that are run."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        if command[-1].startswith("--events="):
            write_jsonl(command[-1].removeprefix("--events="), EVENTS)
        return subprocess.CompletedProcess(command, code, stdout, stderr)

    monkeypatch.setattr(measure_process.subprocess, "run", run)
    return commands


def test_what_is_written_is_what_is_read() -> None:
    """The document of the one package is valid by the schema of the other, every field of it."""
    document = TraceDocument.model_validate_json(DOCUMENT)
    assert json.loads(document.model_dump_json(by_alias=True)) == json.loads(DOCUMENT)


def test_rows_line_up_in_the_shared_order() -> None:
    """A row for each traced phase and for each term that either side has; differences are plan less trace."""
    traced = TraceDocument.model_validate_json(DOCUMENT)
    prediction = estimate(resolved({"model": "7b", "method": "lora", "gpu": "4090", "seq": "512"}))
    beside = put_beside(prediction, traced)
    assert [pair.name for pair in beside.allocated] == ["load", "forward", "loss"]
    assert [pair.trace_bytes for pair in beside.allocated] == [12 * MIB, 42 * MIB, 42 * MIB]
    assert beside.phase == "forward"
    names = [pair.name for pair in beside.terms]
    assert names == sorted(names, key=ALLOCATED_TERM_ORDER.__getitem__)
    by_name = {pair.name: pair for pair in beside.terms}
    assert by_name["saved_activations"].trace_bytes == 30 * MIB
    assert by_name["adapters"].trace_bytes == 0
    assert by_name["adapters"].plan_bytes > 0
    planned = {each.phase: each for each in prediction.memory.phases}
    assert sum(pair.plan_bytes for pair in beside.terms) == pytest.approx(
        float(planned["forward"].allocated_bytes), abs=8
    )
    for pair in (*beside.peaks, *beside.allocated, *beside.reserved, *beside.terms):
        assert pair.difference_bytes == pair.plan_bytes - pair.trace_bytes
        assert pair.difference_of_peak * pair.peak_bytes == pytest.approx(pair.difference_bytes)


def test_flags_are_handed_on_as_they_were_given(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """The trace answers the same question: every flag that was given, and no other."""
    given = {
        "model": "7b",
        "lora_rank": "8",
        "double_quant": False,
        "gradient_checkpointing": True,
        "seq": None,
    }
    assert trace_arguments(given) == [
        "--model=7b",
        "--lora-rank=8",
        "--no-double-quant",
        "--gradient-checkpointing",
    ]
    commands = answer(monkeypatch, 0, DOCUMENT)
    assert main([*JOB, "--trace"]) == 0
    assert commands[0][1:5] == ["-m", "measure", "trace", "--json"]
    assert sorted(commands[0][5:-1]) == ["--gpu=4090", "--method=qlora", "--model=7b", "--seq=512"]
    out = capsys.readouterr().out
    assert "saved activations" in out
    assert "By phase" in out
    assert "The first request that differs, number 1 after loading" in out


def test_json_holds_both_documents_and_the_rows(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """One document with its schema's name, rows with integer bytes, and what each instrument said in full."""
    answer(monkeypatch, 0, DOCUMENT)
    assert main([*JOB, "--trace", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "planner/beside@1"
    assert document["trace"] == json.loads(DOCUMENT)
    assert document["prediction"]["schema"] == "planner/prediction@1"
    row = next(each for each in document["terms"] if each["name"] == "saved_activations")
    assert row["trace_bytes"] == 30 * MIB
    assert row["difference_bytes"] == row["plan_bytes"] - 30 * MIB


def test_versions_that_differ_are_named_with_the_flag_that_makes_them_alike(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The trace runs what is installed, and the stack says what ``plan`` answers for; no note where both are
    the same.
    """
    installed = {"torch": "2.13.0+cpu", "transformers": "5.23.0"}

    def version(package: str) -> str:
        if package not in installed:
            raise PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(trace_process, "version", version)
    answer(monkeypatch, 0, DOCUMENT)
    same = "transformers==5.23.0,torch==2.13.0"
    assert main([*JOB, "--trace", "--json", "--versions", "transformers==5.6.0,torch==2.13.0"]) == 0
    found = json.loads(capsys.readouterr().out)["versions"]
    assert found == [{"package": "transformers", "plan": "5.6.0", "trace": "5.23.0"}]
    assert main([*JOB, "--trace", "--versions", "transformers==5.6.0,torch==2.13.0"]) == 0
    assert "--versions transformers==5.23.0" in " ".join(capsys.readouterr().out.split())
    assert main([*JOB, "--trace", "--json", "--versions", same]) == 0
    assert json.loads(capsys.readouterr().out)["versions"] == []


@pytest.mark.parametrize(
    ("code", "output", "exit_code", "says"),
    [
        (
            2,
            ("", "measure: torch is not installed; install the measure extra\n"),
            2,
            "plan: torch is not installed",
        ),
        (
            6,
            ("", "measure: several GPUs cannot be traced yet; use --gpus 1\n"),
            6,
            "plan: several GPUs cannot be traced yet",
        ),
        (
            1,
            ("", "measure: internal error (KeyError: 1), please report it\n"),
            1,
            "plan: internal error (KeyError: 1)",
        ),
        (-9, ("", ""), 1, "plan: exit code -9"),
        (0, ("{}", ""), 1, "is not the document that plan reads"),
        (
            0,
            (DOCUMENT.replace('"saved_activations"', '"sums"'), ""),
            1,
            "is not the document that plan reads",
        ),
    ],
)
def test_a_trace_that_fails_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    code: int,
    output: tuple[str, str],
    exit_code: int,
    says: str,
) -> None:
    """Its exit code and its sentence are handed on; a document that cannot be read is never half shown."""
    answer(monkeypatch, code, *output)
    assert main([*JOB, "--trace"]) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.count("\n") == 1


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """Where only the planner is installed: one sentence, exit code 2."""
    monkeypatch.setattr(measure_process, "find_spec", lambda _: None)
    assert main([*JOB, "--trace"]) == 2
    assert "install the measure extra" in capsys.readouterr().err


@needs("torch", "peft")
@pytest.mark.real
def test_a_real_trace_stands_beside_the_prediction(capsys: Captured, tmp_path: Path) -> None:
    """On a small model both agree about the weights to within the allocator's rounding."""
    config = tmp_path / "config.json"
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 688,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "vocab_size": 512,
    }
    config.write_text(
        json.dumps({"model_type": "llama", "num_key_value_heads": 4, "torch_dtype": "bfloat16", **sizes})
    )
    assert (
        main(
            ["--model", str(config), "--method", "full", "--gpu", "4090", "--seq", "512", "--trace", "--json"]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    weights = next(each for each in document["terms"] if each["name"] == "weights")
    assert 0 <= weights["trace_bytes"] - weights["plan_bytes"] < 512 * 30
    assert [each["name"] for each in document["allocated"]][-1] == "backward_2"
    # This family asks for memory as the real modules do, request by request.
    assert document["first_difference"] is None


@pytest.mark.parametrize(("memory", "code"), [("24GiB", 0), ("840MiB", 4), ("8MiB", 3)])
def test_an_architecture_without_a_program_is_answered_by_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, memory: str, code: int
) -> None:
    """Peaks of 44 MiB: fits where a CUDA context does beside them, is uncertain where it may not."""
    file = written(tmp_path, '{"model_type": "xlstm"}', "config.json")
    job = ["--model", str(file), "--method", "lora", "--gpu", "4090", "--gpu-memory", memory, "--seq", "64"]
    commands = answer(monkeypatch, 0, DOCUMENT)
    monkeypatch.setattr(bounded, "_NEEDED", ())  # as where torch is installed
    assert main(job) == 6
    assert "--trace" in capsys.readouterr().err
    assert [command[3:] for command in commands] == [["describe", "-"]]
    assert main([*job, "--trace"]) == code
    out = capsys.readouterr().out
    assert "'xlstm'" in out
    assert "saved activations" in out
    assert main([*job, "--trace", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == json.loads(DOCUMENT)
