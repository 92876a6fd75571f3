"""Whether a measurement is worth keeping, with the reasons.  The readings stay as they are;
this is only said beside them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from measure.run.pace import relative_spread
from planner.domain.run_record import Outcome
from planner.units import MIB, format_bytes

Verdict = Literal["good", "doubtful"]

MIN_WARMUP, MIN_STEPS = 3, 5
MAX_DRIFT, MAX_SPREAD = 0.05, 0.10
CENSORED_SHARE = 0.93
_THIRDS = 3
# Less than the context of one program.
_HELD_BYTES = 128 * MIB
# Memory that ran out is a finding: no step was asked to come after it.
_RAN_OUT: frozenset[Outcome] = frozenset({"oom", "host_oom"})


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is looked at.  ``None``: not known, and said so where it matters.

    ``driver_asked`` is false where a device is measured and its driver said nothing about it.
    """

    warmup_steps: int
    counted_s: Sequence[float]
    outcome: Outcome = "ok"
    same_tokens: bool = True
    retries: int | None = None
    throttled: tuple[str, ...] = ()
    driver_asked: bool = True
    other_processes: int | None = 0
    held_before_bytes: int | None = None
    device_peak_bytes: int | None = None
    device_bytes: int | None = None
    warnings: tuple[str, ...] = field(default=())


def judge(evidence: Evidence) -> tuple[Verdict, tuple[str, ...]]:
    """``good``, or ``doubtful`` with each reason in a sentence part that says what to do where something can
    be done.
    """
    reasons = [*_time_reasons(evidence), *_device_reasons(evidence), *evidence.warnings]
    return ("doubtful" if reasons else "good"), tuple(reasons)


def is_censored(evidence: Evidence) -> bool | None:
    """Whether the peak filled the card, where the allocator makes do with less; ``None`` without a device."""
    if evidence.device_peak_bytes is None or evidence.device_bytes is None:
        return None
    return evidence.device_peak_bytes > CENSORED_SHARE * evidence.device_bytes


def _time_reasons(evidence: Evidence) -> list[str]:
    reasons: list[str] = []
    counted = evidence.counted_s
    if evidence.outcome in _RAN_OUT:
        return reasons
    if evidence.outcome != "ok":
        return [f"the run ended as {evidence.outcome}: nothing follows about memory or speed"]
    if evidence.warmup_steps < MIN_WARMUP or len(counted) < MIN_STEPS:
        reasons.append(
            f"too few steps: {evidence.warmup_steps} warm-up and {len(counted)} counted, at least "
            f"{MIN_WARMUP} and {MIN_STEPS}"
        )
    # Steps of different lengths differ for a good reason.
    if evidence.same_tokens and len(counted) >= MIN_STEPS:
        if relative_spread(counted) > MAX_SPREAD:
            reasons.append(
                f"step times spread by {100 * relative_spread(counted):.0f} % of their median: is the "
                "machine busy?"
            )
        if abs(drift(counted)) > MAX_DRIFT:
            reasons.append(
                f"step times drift by {100 * drift(counted):+.0f} %: more warm-up, or the clocks fall"
            )
    return reasons


def drift(values: Sequence[float]) -> float:
    """Median of the last third over that of the first, less one."""
    size = max(1, len(values) // _THIRDS)
    return statistics.median(values[-size:]) / statistics.median(values[:size]) - 1


def _device_reasons(evidence: Evidence) -> list[str]:
    reasons = []
    if evidence.throttled:
        reasons.append(f"throttled: {', '.join(evidence.throttled)}")
    if not evidence.driver_asked:
        reasons.append(
            "the driver said nothing about the device: other processes and slowed clocks would not be known"
        )
    reasons += _other_reasons(evidence)
    if evidence.outcome in _RAN_OUT:
        # Before it gives up, the allocator gives its cache back, and then the card is as full as can be.
        return reasons
    if evidence.retries:
        reasons.append(
            f"the allocator gave its cache back {evidence.retries} times to go on: times are not "
            "those of a free card"
        )
    if is_censored(evidence):
        reasons.append("the card was nearly full: the peak is what there was, not what would be used")
    return reasons


def _other_reasons(evidence: Evidence) -> list[str]:
    """Who else uses the device, by the driver's list, or by what was held before,
    because a container may not see the list.
    """
    held_bytes = evidence.held_before_bytes or 0
    held = f"; {format_bytes(held_bytes)} were in use before this run" if held_bytes > _HELD_BYTES else ""
    if evidence.other_processes:
        return [f"{evidence.other_processes} other processes on the device{held}"]
    return [f"somebody else uses the device, whom the driver does not name{held}"] if held else []
