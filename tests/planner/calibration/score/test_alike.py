"""Runs of our own that did the job of a scenario are found among the records, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.calibration.score.alike import OwnRun, own_runs
from planner.domain.run_record import RunRecord
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.records import append_jsonl

FLAGS: dict[str, object] = {"model": "llama-3.2-1b", "method": "lora", "gpu": "4090", "seq": 1024, "batch": 2}
RECORD = RunRecord(
    id="a",
    source="s",
    source_group="g",
    model="llama-3.2-1b",
    gpu="h100-sxm",
    method="lora",
    seq_len=1024,
    micro_batch=2,
    stack="hf-trainer@5",
    outcome="ok",
)


def readings(allocated: tuple[int, int]) -> dict[str, Any]:
    """Two phases of one rank with these peaks of allocated bytes, reserved a byte more."""
    phases = [
        {
            "phase": name,
            "visits": 1,
            "wall_s": 0.1,
            "allocated_peak_bytes": peak,
            "reserved_peak_bytes": peak + 1,
        }
        for name, peak in zip(("forward", "backward"), allocated, strict=True)
    ]
    keys = {"case_key": "c", "environment_key": "e", "said": {}, "options": {}, "workload": "loop"}
    times = {
        "started_at": "2026-01-01",
        "duration_s": 1.0,
        "how": "fork",
        "host": {"n_samples": 1, "interval_s": 0.05},
    }
    return {"raw": {**keys, **times, "ranks": [{"rank": 0, "phases": phases}]}}


def test_the_same_job_is_found_on_any_gpu_and_no_other(tmp_path: Path) -> None:
    """Model, recipe and stack decide; a run on a CPU, a failed one,
    another length and an unknown model are no match.
    """
    path = tmp_path / "h100-sxm" / "runs.jsonl"
    path.parent.mkdir()
    others = (
        {"gpu": "cpu"},
        {"outcome": "oom"},
        {"seq_len": 512},
        {"model": "nobody/knows"},
        {"gpus_per_node": 2},
    )
    for number, changes in enumerate(others):
        append_jsonl(path, replace(RECORD, id=f"other-{number}", **changes))
    append_jsonl(path, RECORD, readings((5, 7)))
    append_jsonl(path, replace(RECORD, id="bare"))
    found = own_runs(resolve(from_flags(FLAGS)), tmp_path)
    assert found == (OwnRun(RECORD, 7, 8), OwnRun(replace(RECORD, id="bare"), None, None))


def test_without_measurements_there_is_none(tmp_path: Path) -> None:
    """A checkout without records of our own is no error."""
    assert own_runs(resolve(from_flags(FLAGS)), tmp_path / "nothing") == ()
