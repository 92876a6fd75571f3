"""A record for people, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from measure.run.single import Finished
from planner.records.record_schema import RECORD_SCHEMA_ID
from planner.units import MIB, format_bytes, format_seconds

_NONE = "-"
_SUMS = (
    "time: visits of the phase over all steps, warm-up too, x mean time of one; memory: the most of any visit"
)


def record_json(finished: Finished) -> str:
    """The line of the record file, indented."""
    values = {"schema": RECORD_SCHEMA_ID, **asdict(finished.measured.record), **finished.measured.attachments}
    return json.dumps(values, indent=2) + "\n"


def record_text(finished: Finished) -> str:
    """Outcome, memory by phase, step time, quality and where the record is."""
    record, raw = finished.measured.record, finished.measured.attachments["raw"]
    lines = [finished.label, f"outcome: {record.outcome}{_reached(record.outcome, record.phase_reached)}"]
    if raw["error"]:
        lines.append(f"reason: {raw['error']}")
    lines += ["", *_phase_table(raw), "", *_step_lines(raw), *_host_lines(record.host_memory_mib)]
    quality = finished.measured.attachments["quality"]
    lines.append(f"quality: {quality['verdict']}{''.join(f'; {reason}' for reason in quality['reasons'])}")
    lines.append(
        f"engine: {raw['engine_class'] or 'none'}, workload {raw['workload']}, started by {raw['how']}"
    )
    lines.append(f"record: {record.id} in {finished.path}")
    return "\n".join(lines) + "\n"


def _reached(outcome: str, phase: str | None) -> str:
    return "" if outcome == "ok" else f" in phase {phase or 'before the first'}"


def _phase_table(raw: Mapping[str, Any]) -> list[str]:
    header = f"{'phase':16}{'allocated':>12}{'reserved':>12}{'device':>12}{'host RSS':>12}{'time':>16}"
    rows = [
        f"{phase['phase']:16}{_size(phase['allocated_peak_bytes']):>12}"
        f"{_size(phase['reserved_peak_bytes']):>12}{_size(phase['device_used_bytes']):>12}"
        f"{_size(phase['host_rss_bytes']):>12}{_time(phase):>16}"
        for rank in raw["ranks"][:1]
        for phase in rank["phases"]
    ]
    if not rows:
        return ["no phase was measured to its end"]
    sums = any(phase["visits"] > 1 for rank in raw["ranks"][:1] for phase in rank["phases"])
    return [header, *rows, *([_SUMS] if sums else [])]


def _time(phase: Mapping[str, Any]) -> str:
    """Wall time of one visit; of many visits, how many there were and the mean of one."""
    visits: int = phase["visits"]
    if visits <= 1:
        return format_seconds(phase["wall_s"])
    return f"{visits:,} x {format_seconds(phase['wall_s'] / visits)}"


def _step_lines(raw: Mapping[str, Any]) -> list[str]:
    summary = raw["step_summary"]
    if summary is None:
        return ["no step was counted"]
    steps = f"{summary['n_counted']} steps after {summary['n_warmup']} of warm-up"
    return [
        f"step: median {format_seconds(summary['median_s'])}, IQR {format_seconds(summary['iqr_s'])}, {steps}"
    ]


def _host_lines(host_memory_mib: float | None) -> list[str]:
    return (
        []
        if host_memory_mib is None
        else [f"host: peak RSS {format_bytes(host_memory_mib * MIB)} of one process"]
    )


def _size(n_bytes: int | None) -> str:
    return _NONE if n_bytes is None else format_bytes(n_bytes)
