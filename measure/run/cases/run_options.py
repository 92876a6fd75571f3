"""Options of a run from plain values, as a command line or a campaign file has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, get_args

from measure.run.cases.case import WORKLOADS, RunOptions
from planner.domain.run_record import Outcome
from planner.errors import UnknownNameError, UsageError, show
from planner.units import GIB, HOUR_S, MINUTE_S

_MAX_COUNT: Final = 100_000
_MAX_SECONDS: Final = 1_000_000.0
_MAX_LIMIT_BYTES: Final = 1024 * 1024 * GIB
# Whole numbers with the lowest that each may be, and amounts above 0 with their flag,
# the highest and the unit.
_COUNTS: Final = {"steps": 1, "warmup": 0, "max_steps": 1, "seed": 0}
_AMOUNTS: Final = {
    "budget_s": (" (--budget)", _MAX_SECONDS, " seconds"),
    "timeout_s": (" (--timeout)", _MAX_SECONDS, " seconds"),
    "settle": ("", 1.0, ", a share of the median step"),
}
_PLACE: Final = re.compile(r"[A-Za-z0-9_.-]{1,253}:[0-9]{1,5}")
_DURATION: Final = re.compile(r"(?:([0-9]{1,4})h)?(?:([0-9]{1,5})m)?(?:([0-9]{1,7}(?:\.[0-9]{1,6})?)s?)?")


def checked_options(values: dict[str, Any]) -> RunOptions:
    """Options of a run from plain values, as a command line or a campaign file has them.

    Raises:
        UsageError: a value of the wrong type or out of range.
    """
    checked = dict(values)
    if "workload" in checked and checked["workload"] not in WORKLOADS:
        raise UnknownNameError(
            "workload", show(checked["workload"]), WORKLOADS, hint=f"allowed: {', '.join(WORKLOADS)}"
        )
    _check_numbers(checked)
    _check_plain(checked)
    if "lengths" in checked:
        checked["lengths"] = _lengths(checked["lengths"])
    options = RunOptions(**checked)
    if options.max_steps >= options.steps:
        return options
    if "max_steps" in checked:
        raise UsageError(
            f"max_steps is {options.max_steps:,}, which is below steps ({options.steps:,}): say a "
            "lower --steps too"
        )
    # Who asks for more counted steps than the usual limit means it.
    return replace(options, max_steps=options.steps)


def _check_numbers(values: Mapping[str, Any]) -> None:
    """Refuse what is no number or out of range; a truth value and NaN are neither."""
    for name, low in _COUNTS.items():
        value = values.get(name, low)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _MAX_COUNT:
            raise UsageError(
                f"{name} must be a whole number from {low} to {_MAX_COUNT:,}, but it is {show(value)}"
            )
    for name, (flag, high, unit) in _AMOUNTS.items():
        value = values.get(name, high)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= high:
            raise UsageError(
                f"{name}{flag} must be above 0 and up to {high:,.0f}{unit}, but it is {show(value)}"
            )


def _check_plain(values: Mapping[str, Any]) -> None:
    """Refuse texts and switches that are something else."""
    for name in ("checkpoint", "nvme_path", "rendezvous"):
        if name in values and not isinstance(values[name], str):
            raise UsageError(f"{name} must be a text, but it is {show(values[name])}")
    if "rendezvous" in values and not _PLACE.fullmatch(values["rendezvous"]):
        raise UsageError(
            "rendezvous must be a host and a port such as node-1:29500, but it is "
            f"'{show(values['rendezvous'])}'"
        )
    for name in ("trust_remote_code", "history", "save"):
        if name in values and not isinstance(values[name], bool):
            raise UsageError(f"{name} must be true or false, but it is {show(values[name])}")


def memory_limit_bytes(text: str) -> int:
    """Bytes of a size, or the memory that a card of the catalog makes visible.

    Raises:
        UsageError: neither; or a card whose memory is not known.
    """
    from planner.catalog.gpus import load_gpu
    from planner.units import parse_size_bytes

    try:
        size_bytes: int | None = parse_size_bytes(text)
    except ValueError:
        size_bytes = None
    if size_bytes is not None:
        if not 0 < size_bytes <= _MAX_LIMIT_BYTES:
            raise UsageError(
                f"memory_limit must be above 0 and up to {_MAX_LIMIT_BYTES // GIB:,} GiB, but it is "
                f"'{show(text)}'"
            )
        return size_bytes
    try:
        gpu = load_gpu(text)
    except UnknownNameError:
        raise UsageError(
            f"memory_limit must be a size such as 24GiB or a card such as 4090, but it is '{show(text)}'"
        ) from None
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
    """Outcomes of a list such as ``crash,timeout``; none where nothing is given.

    Raises:
        UnknownNameError: not an outcome.
    """
    known = {name: name for name in get_args(Outcome)}
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    for part in parts:
        if part not in known:
            raise UnknownNameError(
                f"outcome of {flag}", show(part), tuple(known), hint=f"allowed: {', '.join(known)}"
            )
    return tuple(known[part] for part in parts)


def _lengths(value: object) -> tuple[int, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    try:
        # A fraction or a truth value is no count of tokens.
        lengths = tuple(int(str(part)) for part in parts)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        lengths = ()
    if not lengths or min(lengths) < 1 or list(lengths) != sorted(lengths):
        raise UsageError(
            f"lengths must be rising whole numbers from 1 such as 32,180,400,1024, but they are {show(value)}"
        )
    return lengths
