"""`plan validate` on records of our own: phase by phase, terms from an allocator history,
and CPU runs apart.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.allocator.documents.export import snapshot_of
from planner.allocator.documents.history_file import pack_history
from planner.allocator.events import AllocEvent
from planner.allocator.lifetimes import with_terms
from planner.calibration.score.validate import validate
from planner.cli import histories
from planner.cli.main import main
from planner.domain.run_record import RunRecord
from planner.intake.given.request import from_record
from planner.intake.resolve import resolve
from planner.predicting import predict_with
from planner.records import append_jsonl, read_records
from planner.report.validation.document import ValidationDocument
from planner.units import MIB

RECORD = RunRecord(
    id="run-1",
    source="measure-a100-80gb-x",
    source_group="measure-x",
    model="qwen2.5-0.5b",
    gpu="a100-80gb",
    method="lora",
    lora_rank=8,
    seq_len=512,
    micro_batch=2,
    outcome="ok",
    stack="hf-trainer@5",
)


def readings(record: RunRecord, scale: float, **more: Any) -> dict[str, Any]:
    """What a record would carry if every phase took ``scale`` times what is predicted; two ranks,
    the second the fuller.
    """
    memory = predict_with(resolve(from_record(record), force=True), _priors()).memory

    def phase(peak: Any, factor: float) -> dict[str, Any]:
        return {
            "phase": peak.phase,
            "visits": 1,
            "wall_s": 0.1,
            "allocated_peak_bytes": round(factor * float(peak.allocated_bytes)),
            "reserved_peak_bytes": round(factor * float(peak.reserved_bytes)),
            "host_rss_bytes": 5 * MIB,
        }

    ranks = [
        {"rank": number, "phases": [phase(peak, factor * scale) for peak in memory.phases]}
        for number, factor in enumerate((0.5, 1.0))
    ]
    host = {"n_samples": 1, "interval_s": 0.05}
    times = {"started_at": "2026-01-01", "duration_s": 1.0, "how": "fork"}
    keys = {"case_key": "c", "environment_key": "e", "said": {}, "options": {}, "workload": "loop"}
    return {"raw": {**keys, **times, "ranks": ranks, "host": host, **more}}


def _priors() -> Any:
    from planner.predicting import PRIORS

    return PRIORS


def write(folder: Path, *pairs: tuple[RunRecord, dict[str, Any]]) -> str:
    """A record file."""
    path = folder / "records.jsonl"
    for record, attachments in pairs:
        append_jsonl(path, record, attachments)
    return str(path)


def test_each_phase_is_compared_with_the_fullest_rank(tmp_path: Path) -> None:
    """A record that reads a quarter more than predicted everywhere is 20 % too low in each phase,
    at both levels.
    """
    validation = validate(read_records([write(tmp_path, (RECORD, readings(RECORD, 1.25)))]))
    phases = validation.phases["run-1"]
    assert [each.phase for each in phases][:3] == ["load", "adapters", "forward"]
    for each in phases:
        assert each.allocated.error == pytest.approx(-0.2, abs=1e-6)
    summaries = {(each.phase, each.level): each.errors for each in validation.phase_errors}
    assert summaries["backward", "allocated"].mape == pytest.approx(0.2, abs=1e-6)
    assert summaries["backward", "reserved"].n == 1


def test_the_phase_that_failed_is_not_compared(tmp_path: Path) -> None:
    """Memory ran out in the backward pass: what was read there is no peak of it."""
    failed = replace(RECORD, outcome="oom", phase_reached="backward")
    validation = validate(read_records([write(tmp_path, (failed, readings(failed, 1.0)))]))
    named = [each.phase for each in validation.phases["run-1"]]
    assert "forward" in named
    assert "backward" not in named


def test_runs_on_a_cpu_are_in_no_number_of_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are counted, scored and shown apart, and change nothing about the others."""
    on_cpu = replace(
        RECORD, id="run-2", gpu="cpu", step_time_s=1.0, host_memory_mib=500.0, host_memory_kind="rss_peak"
    )
    attachments = readings(RECORD, 1.0)
    for rank in attachments["raw"]["ranks"]:
        for phase in rank["phases"]:
            phase["allocated_peak_bytes"] = phase["reserved_peak_bytes"] = None
    path = write(tmp_path, (RECORD, readings(RECORD, 1.25)), (on_cpu, attachments))
    validation = validate(read_records([path]))
    assert [row.record.id for row in validation.rows] == ["run-1"]
    assert [row.record.id for row in validation.cpu_rows] == ["run-2"]
    assert validation.overall.n_rows == 1
    assert all(each.errors.n == 1 for each in validation.phase_errors)
    assert main(["validate", path, "--rows"]) == 0
    shown = capsys.readouterr().out
    assert "1 without a GPU, apart" in shown
    assert "Phases of run-2 on a CPU" in shown
    columns = ["phase", "allocated", "predicted", "error", "reserved", "predicted", "error"]
    assert columns in [line.split() for line in shown.splitlines()]
    assert sum(line.startswith("optimizer_step ") for line in shown.splitlines()) == 4
    assert main(["validate", path, "--rows", "--json"]) == 0
    document = ValidationDocument.model_validate_json(capsys.readouterr().out)
    assert [row.id for row in document.cpu_rows] == ["run-2"]
    assert document.rows[0].phases[0].allocated.error == pytest.approx(-0.2, abs=0.02)
    assert document.cpu_rows[0].phases[0].allocated is None
    assert document.cpu_rows[0].phases[0].host_rss_bytes == 5 * MIB


def step_events() -> list[AllocEvent]:
    """One step by hand, in blocks of 1 to 8 MiB: number, size,
    and the phases from which and to which it lives.
    """
    lives = [
        (1, 8, "load", None),
        (2, 1, "load", "load"),
        (3, 2, "adapters", None),
        (4, 4, "forward", "backward"),
        (5, 3, "forward", "forward"),
        (6, 6, "loss", "backward"),
        (7, 2, "backward", "optimizer_step"),
        (8, 3, "backward", "backward"),
        (9, 4, "optimizer_step", None),
        (10, 2, "optimizer_step", "optimizer_step"),
        (11, 4, "forward_2", "loss_2"),
        (12, 1, "forward_2", None),
    ]
    order = ["load", "adapters", "forward", "loss", "backward", "optimizer_step", "forward_2", "loss_2"]
    events = []
    for phase in order:
        born = [life for life in lives if life[2] == phase]
        events += [AllocEvent("alloc", number, size * MIB, phase=phase) for number, size, _, _ in born]
        ended = [life for life in lives if life[3] == phase]
        events += [AllocEvent("free", number, size * MIB, phase=phase) for number, size, _, _ in ended]
    return events


def test_terms_follow_from_when_a_block_is_made_and_let_go() -> None:
    """Each kind of life is one term;
    what lives on beyond its micro-step is neither an activation nor a temporary of a pass.
    """
    terms = {event.block: event.term for event in with_terms(step_events()) if event.action == "alloc"}
    assert terms == {
        1: "weights",
        2: "other_temporaries",
        3: "adapters",
        4: "saved_activations",
        5: "block_recompute",
        6: "logits_and_loss",
        7: "gradients",
        8: "block_recompute",
        9: "optimizer_states",
        10: "optimizer_temporaries",
        11: "saved_activations",
        12: "saved_activations",
    }


def test_what_stays_after_a_whole_step_is_no_activation() -> None:
    """A workspace that the forward pass makes and nobody frees is not saved for the backward pass."""
    events = [
        AllocEvent("alloc", 1, MIB, phase="forward"),
        AllocEvent("alloc", 2, MIB, phase="optimizer_step"),
    ]
    assert [event.term for event in with_terms(events)] == ["other_temporaries", "optimizer_states"]


def test_what_the_next_micro_step_lets_go_is_no_activation() -> None:
    """A buffer that a pass leaves to the next one is not saved for its own backward pass."""
    events = [
        AllocEvent("alloc", 1, MIB, phase="forward"),
        AllocEvent("alloc", 2, MIB, phase="loss"),
        AllocEvent("alloc", 3, MIB, phase="backward"),
        AllocEvent("free", 1, MIB, phase="forward_2"),
        AllocEvent("free", 2, MIB, phase="forward_2"),
    ]
    terms = [event.term for event in with_terms(events) if event.action == "alloc"]
    assert terms == ["other_temporaries", "other_temporaries", "gradients"]


def history_of(events: list[AllocEvent]) -> bytes:
    """The file that a run would write: the snapshot of the stream, and when each phase began."""
    snapshot = snapshot_of(events)
    marks = [
        (each["time_us"], each["name"])
        for each in snapshot["external_annotations"]
        if each["stage"] == "START"
    ]
    return pack_history(snapshot, 0, marks)


def test_a_history_is_set_beside_the_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The history beside the record is replayed,
    and its terms at the peak stand beside those of the closed form.
    """
    (tmp_path / "histories").mkdir()
    (tmp_path / "histories" / "run-1.jsonl.gz").write_bytes(history_of(step_events()))
    path = write(tmp_path, (RECORD, readings(RECORD, 1.0, history="histories/run-1.jsonl.gz")))
    assert main(["validate", path, "--history", "--json"]) == 0
    document = ValidationDocument.model_validate_json(capsys.readouterr().out)
    (scored,) = document.histories
    measured = {pair.name: pair.measured_bytes for pair in scored.pairs}
    # Weights, adapters, activations, logits, one gradient and one temporary are there at once,
    # in the backward pass.
    assert scored.phase == "backward"
    assert scored.allocated_bytes == sum(measured.values()) == (8 + 2 + 4 + 6 + 2 + 3) * MIB
    assert (measured["weights"], measured["logits and loss"], measured["gradients"]) == (
        8 * MIB,
        6 * MIB,
        2 * MIB,
    )
    assert all(
        pair.predicted_bytes > 0 for pair in scored.pairs if pair.name in ("weights", "adapters", "gradients")
    )
    assert main(["validate", path, "--history"]) == 0
    assert "Terms of run-1" in capsys.readouterr().out


def test_a_history_that_cannot_be_had_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing, or named outside of the folder of its record: one sentence for that record.  None at all:
    exit code 2.
    """
    path = write(
        tmp_path,
        (RECORD, readings(RECORD, 1.0, history="histories/gone.jsonl.gz")),
        (replace(RECORD, id="run-2"), readings(RECORD, 1.0, history="../../etc/passwd")),
    )
    assert main(["validate", path, "--history", "--json"]) == 0
    reasons = {
        each["record_id"]: each["not_scored"] for each in json.loads(capsys.readouterr().out)["histories"]
    }
    assert "is missing" in reasons["run-1"]
    assert "outside" in reasons["run-2"]
    (tmp_path / "plain").mkdir()
    assert main(["validate", write(tmp_path / "plain", (RECORD, readings(RECORD, 1.0))), "--history"]) == 2
    assert "no record of these files has an allocator history" in capsys.readouterr().err


def test_a_replay_that_takes_too_long_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is named with the reason and the command that has no limit; the others are answered."""
    monkeypatch.setattr(histories, "LONGEST_REPLAY_S", 0.01)
    (tmp_path / "histories").mkdir()
    (tmp_path / "histories" / "run-1.jsonl.gz").write_bytes(history_of(step_events()))
    path = write(tmp_path, (RECORD, readings(RECORD, 1.0, history="histories/run-1.jsonl.gz")))
    assert main(["validate", path, "--history"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Terms of run-1" in told
    assert "skipped: measure replay took longer than 0.01 s; without this limit: measure replay" in told


def test_a_hostile_history_is_skipped_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe holds nothing up, and what the replay says of a malformed file is said of its record."""
    (tmp_path / "histories").mkdir()
    os.mkfifo(tmp_path / "histories" / "pipe.jsonl.gz")
    (tmp_path / "histories" / "bad.jsonl.gz").write_bytes(b"no gzip")
    path = write(
        tmp_path,
        (RECORD, readings(RECORD, 1.0, history="histories/pipe.jsonl.gz")),
        (replace(RECORD, id="run-2"), readings(RECORD, 1.0, history="histories/bad.jsonl.gz")),
    )
    assert main(["validate", path, "--history", "--json"]) == 0
    reasons = {
        each["record_id"]: each["not_scored"] for each in json.loads(capsys.readouterr().out)["histories"]
    }
    assert "skipped: its history is not beside its record" in reasons["run-1"]
    assert reasons["run-2"].startswith("skipped: ")
    assert "not gzip, or damaged" in reasons["run-2"]


@pytest.mark.parametrize(
    "name",
    ["histories/loop.jsonl.gz", "histories/\0.jsonl.gz", "../outside.jsonl.gz", "histories/" + "x" * 5000],
)
def test_a_history_named_where_no_file_can_be_is_skipped(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name comes from a file: a link to itself, a NUL byte, another folder, a name that no disk takes."""
    (tmp_path / "histories").mkdir()
    (tmp_path / "histories" / "loop.jsonl.gz").symlink_to("loop.jsonl.gz")
    path = write(tmp_path, (RECORD, readings(RECORD, 1.0, history=name)))
    assert main(["validate", path, "--history", "--json"]) == 0
    [history] = json.loads(capsys.readouterr().out)["histories"]
    assert history["not_scored"].startswith("skipped: its history is")
