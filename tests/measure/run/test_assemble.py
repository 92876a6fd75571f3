"""One case and how it went, by hand, as a record: its columns, its rates and what travels with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from measure.run.assemble import MeasuredRecord, assemble, scenario_columns
from measure.run.cases.case import RunCase, RunOptions
from measure.run.launcher import Event, RunResult
from measure.run.readings.host_memory import HostPeaks
from planner.units import GIB, MIB

JOB = {"model": "qwen2.5-0.5b", "method": "lora", "gpu": "h200-sxm", "seq": 64, "batch": 2, "grad_accum": 3}
ENVIRONMENT = {"machine": "abc", "libraries": {"torch": "2.10"}, "gpu_state": []}
HOST = HostPeaks(3 * GIB, None, None, None, None, None, 1, 0.05)


def step(index: int, wall_s: float, *, warmup: bool = False, padded: int = 768) -> Event:
    """A step of 600 real tokens."""
    return {
        "event": "step", "index": index, "warmup": warmup, "wall_s": wall_s, "device_s": None,
        "real_tokens": 600, "padded_tokens": padded,
    }  # fmt: skip


def readings(**reserved: int | None) -> Event:
    """Peaks of phases."""
    phases = [{"phase": name, "reserved_peak_bytes": n_bytes} for name, n_bytes in reserved.items()]
    return {"event": "readings", "phases": phases, "counters": {"retries": 0}}


# The warm-up is slow; three steps count.
STEPS = (step(0, 9.0, warmup=True), step(1, 1.0), step(2, 2.0), step(3, 6.0))


def run(*events: Event, other_rank: tuple[Event, ...] = (), **changed: Any) -> RunResult:
    """A run whose first rank said ``events``."""
    ranks = (events, other_rank) if other_rank else (events,)
    return replace(RunResult("ok", None, None, ranks, HOST, (), 0.0, 30.0, "fork"), **changed)


def assembled(result: RunResult, job: dict[str, Any] | None = None, **options: Any) -> MeasuredRecord:
    """The record of that run."""
    case = RunCase(job or JOB, RunOptions(**options))
    return assemble(case, case.scenario(), result, ENVIRONMENT)


def test_a_step_lasts_its_median_where_all_steps_are_alike() -> None:
    """Of 1, 2 and 6 seconds; six samples and 600 real tokens of 768 in a step of two seconds."""
    record = assembled(run(*STEPS)).record
    assert record.step_time_s == 2.0
    assert record.samples_per_s == pytest.approx(6 / 2)
    assert (record.tokens_per_s, record.padded_tokens_per_s) == (pytest.approx(300), pytest.approx(384))


def test_steps_of_different_lengths_count_by_their_work() -> None:
    """Nine seconds over three steps are three each, whose padded tokens are 512 on average."""
    varied = (STEPS[0], step(1, 1.0, padded=256), step(2, 2.0, padded=512), step(3, 6.0, padded=768))
    record = assembled(run(*varied)).record
    assert record.step_time_s == pytest.approx(3.0)
    assert record.padded_tokens_per_s == pytest.approx(512 / 3)


def test_rates_are_those_of_all_gpus() -> None:
    """Two of them compute twice as many samples and tokens."""
    both = assembled(run(*STEPS, other_rank=STEPS), {**JOB, "gpu": "h200-sxm:2"}).record
    assert both.samples_per_s == pytest.approx(2 * 6 / 2)
    assert both.tokens_per_s == pytest.approx(600)


@pytest.mark.parametrize("changed", [{"outcome": "oom", "phase": "backward"}, {"events": (STEPS[:1],)}])
def test_a_run_without_counted_steps_has_no_rate(changed: dict[str, Any]) -> None:
    """It ran out of memory, or only warmed up."""
    record = assembled(run(*STEPS, **changed)).record
    assert (record.step_time_s, record.samples_per_s, record.tokens_per_s) == (None, None, None)


def test_the_peak_is_that_of_the_fullest_rank() -> None:
    """Most that was reserved in any phase; phases without a reading are left out."""
    first = readings(load=5 * MIB, forward=70 * MIB, backward=None)
    one = assembled(run(first, *STEPS)).record
    assert (one.peak_memory_mib, one.peak_memory_per_rank_mib) == (70, ())
    assert (one.memory_kind, one.memory_scope) == ("reserved", "per_gpu")
    two = assembled(run(first, *STEPS, other_rank=(readings(forward=90 * MIB),))).record
    assert (two.peak_memory_mib, two.peak_memory_per_rank_mib) == (90, (70, 90))


def test_what_was_not_read_is_left_blank() -> None:
    """No device, no memory, and no kind of it; host memory the same."""
    nothing = assembled(run(*STEPS, host=replace(HOST, rss_process_bytes=None))).record
    assert (nothing.peak_memory_mib, nothing.memory_kind, nothing.memory_scope) == (None, None, None)
    assert (nothing.host_memory_mib, nothing.host_memory_kind) == (None, None)
    some = assembled(run(*STEPS)).record
    assert (some.host_memory_mib, some.host_memory_kind, some.host_memory_scope) == (
        3072,
        "rss_peak",
        "process",
    )


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ({}, "backward"),
        ({"outcome": "oom", "phase": "loss"}, "loss"),
        ({"outcome": "crash", "phase": "tea"}, None),
        ({"outcome": "crash"}, None),
    ],
)
def test_a_run_reached_its_last_phase_or_the_one_that_failed(
    changed: dict[str, Any], reached: str | None
) -> None:
    """In the order of phases, whatever the order of the events; an unknown word is none."""
    phases = [{"event": "phase", "phase": name} for name in ("backward", "load", "forward")]
    assert assembled(run(*phases, *STEPS, **changed)).record.phase_reached == reached


def test_the_limit_is_that_of_the_device() -> None:
    """On a CPU it is about the process, and no limit of a card."""
    limit = {"memory_limit_bytes": 20 * GIB}
    assert assembled(run(*STEPS), **limit).record.memory_limit_mib == 20 * 1024
    assert assembled(run(*STEPS)).record.memory_limit_mib is None
    assert assembled(run(*STEPS), {**JOB, "gpu": "cpu"}, **limit).record.memory_limit_mib is None


def test_a_record_says_where_it_comes_from() -> None:
    """Machine, libraries and time; two runs of one case have ids of their own."""
    first, second = assembled(run(*STEPS)), assembled(run(*STEPS))
    key = first.attachments["raw"]["case_key"]
    assert first.record.id.startswith(f"run-{key}-")
    assert first.record.id != second.record.id
    assert (first.record.source, first.record.source_group) == ("measure-h200-sxm-abc", "measure-abc")
    assert (first.record.versions, first.record.locator) == (("torch==2.10",), "1970-01-01T00:00:00+00:00")


def test_readings_travel_with_the_record() -> None:
    """Steps with their times, a summary of those that count, and the message without passwords."""
    failed = run(*STEPS, outcome="crash", message="git clone https://me:secret@host/x failed")
    raw = assembled(failed).attachments["raw"]
    assert [each["wall_s"] for each in raw["steps"]] == [9.0, 1.0, 2.0, 6.0]
    assert raw["step_summary"] == {"median_s": 2.0, "iqr_s": 5.0, "n_counted": 3, "n_warmup": 1}
    assert "secret" not in raw["error"]
    assert assembled(run(*STEPS[:1])).attachments["raw"]["step_summary"] is None


def test_notes_say_what_a_cpu_and_a_history_change() -> None:
    """A run on a card without a history has none."""
    paged = {**JOB, "gpu": "cpu", "optimizer": "paged_adamw_32bit"}
    notes = assembled(run(*STEPS), paged, history=True).record.notes
    assert notes is not None
    assert notes.startswith("CPU run: ")
    assert "allocator's history" in notes
    assert "no paged states on a CPU" in notes
    assert assembled(run(*STEPS)).record.notes is None


def test_what_a_job_does_not_have_is_blank_in_its_columns() -> None:
    """Re-entrance without checkpointing, adapters' rank of a full fine-tune, degrees of one GPU."""
    plain = scenario_columns(RunCase({**JOB, "method": "full", "gradient_checkpointing": False}).scenario())
    names = ("checkpoint_reentrant", "lora_rank", "checkpoint_policy", "task", "tensor_parallel", "fp8")
    assert {name: plain.get(name) for name in names} == dict.fromkeys(names)
    made = scenario_columns(RunCase({**JOB, "gradient_checkpointing": True, "lora_rank": 4}).scenario())
    assert (made["lora_rank"], made["micro_batch"], made["grad_accum"], made["seq_len"]) == (4, 2, 3, 64)
    assert made["checkpoint_reentrant"] is not None
    assert (made["model"], made["gpu"], made["tokens_per_sample"]) == ("Qwen/Qwen2.5-0.5B", "h200-sxm", 64.0)


def test_a_model_is_named_so_that_it_is_found_again(tmp_path: Path) -> None:
    """By the path of its configuration where it was read from a file."""
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 256, "max_position_embeddings": 512,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert scenario_columns(RunCase({**JOB, "model": str(path)}).scenario())["model"] == str(path)
