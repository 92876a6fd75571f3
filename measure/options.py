"""Options of a run from plain values, as a command line or a campaign file has them."""

from __future__ import annotations

import re
from typing import Any, Final, get_args

from measure.case import WORKLOADS, RunOptions
from planner.domain.run_record import Outcome
from planner.errors import UnknownNameError, UsageError
from planner.intake.fields import show
from planner.units import HOUR_S, MINUTE_S

_MAX_STEPS: Final = 100_000
_MAX_SECONDS: Final = 1_000_000.0
_PLACE: Final = re.compile(r"[A-Za-z0-9_.-]{1,253}:[0-9]{1,5}")
_DURATION: Final = re.compile(r"(?:([0-9]{1,4})h)?(?:([0-9]{1,5})m)?(?:([0-9]{1,7}(?:\.[0-9]{1,6})?)s?)?")


def checked_options(values: dict[str, Any]) -> RunOptions:
    """Options of a run from plain values, as a command line or a campaign file has them.

    Raises:
        UsageError: a value of the wrong type or out of range.
    """
    checked = dict(values)
    if "workload" in checked and checked["workload"] not in WORKLOADS:
        raise UnknownNameError("workload", show(checked["workload"]), WORKLOADS, hint=f"allowed: {', '.join(WORKLOADS)}")
    for name, low in (("steps", 1), ("warmup", 0), ("max_steps", 1), ("seed", 0)):
        if name in checked and not (isinstance(checked[name], int) and low <= checked[name] <= _MAX_STEPS):
            raise UsageError(f"{name} must be a whole number from {low} to {_MAX_STEPS:,}, but it is {show(checked[name])}")
    for name in ("budget_s", "timeout_s"):
        if name in checked and not (isinstance(checked[name], int | float) and 0 < checked[name] <= _MAX_SECONDS):
            raise UsageError(f"{name} must be above 0 and up to {_MAX_SECONDS:,.0f} seconds, but it is {show(checked[name])}")
    for name in ("checkpoint", "nvme_path", "rendezvous"):
        if name in checked and not isinstance(checked[name], str):
            raise UsageError(f"{name} must be a text, but it is {show(checked[name])}")
    if "rendezvous" in checked and not _PLACE.fullmatch(checked["rendezvous"]):
        raise UsageError(f"rendezvous must be a host and a port such as node-1:29500, but it is '{show(checked['rendezvous'])}'")
    if "lengths" in checked:
        checked["lengths"] = _lengths(checked["lengths"])
    options = RunOptions(**checked)
    # Who asks for more counted steps than the usual limit means it.
    return options if options.max_steps >= options.steps else RunOptions(**{**checked, "max_steps": options.steps})


def memory_limit_bytes(text: str) -> int:
    """Bytes of a size, or the memory that a card of the catalog makes visible.

    Raises:
        UsageError: neither; or a card whose memory is not known.
    """
    from planner.catalog.gpus import load_gpu
    from planner.units import parse_size_bytes

    try:
        return parse_size_bytes(text)
    except ValueError:
        pass
    try:
        gpu = load_gpu(text)
    except UnknownNameError:
        raise UsageError(f"memory_limit must be a size such as 24GiB or a card such as 4090, but it is '{show(text)}'") from None
    if gpu.visible_memory_bytes is None:
        raise UsageError(f"how much memory {gpu.name} makes visible is not known: give --memory-limit a size")
    return gpu.visible_memory_bytes


def duration_s(flag: str, text: str) -> float:
    """Seconds of a time such as ``90``, ``90s``, ``9m`` or ``1h30m``.

    Raises:
        UsageError: not such a time, or none at all.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    total_s = hours * HOUR_S + minutes * MINUTE_S + seconds
    if total_s <= 0:
        raise UsageError(f"{flag} must be a time such as 90s, 9m or 1h30m, but it is '{show(text)}'")
    return total_s


def outcomes(flag: str, text: str | None) -> tuple[Outcome, ...]:
    """Outcomes of a list such as ``crash,timeout``; none where nothing is said.

    Raises:
        UnknownNameError: not an outcome.
    """
    known = {name: name for name in get_args(Outcome)}
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    for part in parts:
        if part not in known:
            raise UnknownNameError(f"outcome of {flag}", show(part), tuple(known), hint=f"allowed: {', '.join(known)}")
    return tuple(known[part] for part in parts)


def _lengths(value: object) -> tuple[int, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    try:
        lengths = tuple(int(part) for part in parts)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        lengths = ()
    if not lengths or min(lengths) < 1 or list(lengths) != sorted(lengths):
        raise UsageError(f"lengths must be rising whole numbers from 1 such as 32,180,400,1024, but they are {show(value)}")
    return lengths
