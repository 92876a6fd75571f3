"""What a trace says: peaks by phase, bytes by term at the peak, where the peak is, reserved memory and the verdict for a card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from measure.trace.events import AllocEvent
from measure.trace.replay import PhasePeaks, ReplayResult, replay
from planner.domain.scenario import Assumption
from planner.errors import UsageError
from planner.units import format_bytes, format_gib

TRACE_SCHEMA_ID = "finetune-planner/trace/1"


@dataclass(frozen=True, slots=True)
class Peak:
    """Where most was allocated."""

    phase: str
    op: str
    module: str


@dataclass(frozen=True, slots=True)
class Summary:
    """A trace in numbers.  Bytes are those of the allocator's blocks, as torch's ``max_memory_allocated`` counts them."""

    phases: tuple[PhasePeaks, ...]
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    peak: Peak
    terms_at_peak: dict[str, int]
    n_events: int
    verdict: ReplayResult | None = None


def summarize(events: Sequence[AllocEvent], limit_bytes: int | None = None) -> Summary:
    """Replay ``events`` on an unlimited card, and on one of ``limit_bytes`` for a verdict.

    Raises:
        UsageError: no events.
    """
    result = replay(events)
    index = result.peak_allocated_event
    if index is None:
        raise UsageError("nothing was allocated, so there is no peak")
    at_peak = events[index]
    terms = result.allocated_by_term(events, index)
    return Summary(
        phases=result.phases,
        allocated_peak_bytes=result.peak_allocated_bytes,
        reserved_peak_bytes=result.peak_reserved_bytes,
        peak=Peak(at_peak.phase, at_peak.op, at_peak.module),
        terms_at_peak={term: size for term, size in sorted(terms.items(), key=lambda item: -item[1]) if size},
        n_events=len(events),
        verdict=None if limit_bytes is None else replay(events, limit_bytes=limit_bytes),
    )


def to_json(summary: Summary, assumptions: Sequence[Assumption]) -> str:
    """The summary as JSON; bytes are integers."""
    value: dict[str, Any] = {
        "schema": TRACE_SCHEMA_ID,
        "allocated_peak_bytes": summary.allocated_peak_bytes,
        "reserved_peak_bytes": summary.reserved_peak_bytes,
        "peak": {"phase": summary.peak.phase, "operator": summary.peak.op, "module": summary.peak.module},
        "phases": [
            {"phase": each.phase, "allocated_bytes": each.allocated_bytes, "reserved_bytes": each.reserved_bytes}
            for each in summary.phases
        ],
        "terms_at_peak": [{"term": term, "bytes": size} for term, size in summary.terms_at_peak.items()],
        "events": summary.n_events,
        "verdict": None if summary.verdict is None else _verdict_json(summary.verdict),
        "assumptions": [asdict(each) for each in assumptions],
    }
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def _verdict_json(verdict: ReplayResult) -> dict[str, Any]:
    failed = verdict.out_of_memory
    return {
        "limit_bytes": verdict.limit_bytes,
        "outcome": verdict.outcome,
        "cache_releases": verdict.n_retries,
        "out_of_memory": None
        if failed is None
        else {
            "phase": failed.phase,
            "operator": failed.op,
            "module": failed.module,
            "requested_bytes": failed.requested_bytes,
            "attempted_bytes": failed.attempted_bytes,
            "allocated_bytes": failed.allocated_bytes,
            "reserved_bytes": failed.reserved_bytes,
        },
    }


def to_text(summary: Summary) -> str:
    """The summary for people, in GiB (powers of 2)."""
    peak = summary.peak
    lines = [
        f"allocated peak {format_gib(summary.allocated_peak_bytes)}, reserved peak {format_gib(summary.reserved_peak_bytes)}",
        f"at the peak: {peak.phase}, operator {peak.op}, module {peak.module or '(none)'}",
        "",
        f"{'phase':<16}{'allocated':>12}{'reserved':>12}",
    ]
    lines += [f"{p.phase:<16}{format_gib(p.allocated_bytes):>12}{format_gib(p.reserved_bytes):>12}" for p in summary.phases]
    lines += ["", "alive at the peak"]
    lines += [f"  {term:<24}{format_bytes(size):>12}" for term, size in summary.terms_at_peak.items()]
    if summary.verdict is not None:
        lines += ["", verdict_sentence(summary.verdict)]
    return "\n".join(lines) + "\n"


def verdict_sentence(verdict: ReplayResult) -> str:
    """The verdict in one sentence."""
    size = format_gib(verdict.limit_bytes or 0)
    failed = verdict.out_of_memory
    if failed is not None:
        return (
            f"DOES NOT FIT in {size}: out of memory in {failed.phase} at {failed.op} ({failed.module or 'no module'}), "
            f"which asked for {format_bytes(failed.requested_bytes)} with {format_gib(failed.allocated_bytes)} allocated"
        )
    if verdict.n_retries:
        return f"FITS in {size} after the allocator gave its cache back {verdict.n_retries} times, which costs time"
    return f"FITS in {size}"
