"""Options that say how to measure, for every command that runs cases."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from measure.case import WORKLOADS, RunOptions
from measure.cli.said import size_bytes
from planner.errors import UnknownNameError, UsageError
from planner.intake.fields import show
from planner.intake.flags import OwnOptions

_MAX_STEPS: Final = 100_000
_MAX_SECONDS: Final = 1_000_000.0
_DEFAULTS: Final = RunOptions()


def _option(kind: Any, flag: str, metavar: str, text: str) -> Any:
    return Annotated[kind | None, typer.Option(flag, metavar=metavar, help=text, show_default=False)]


RUN_OPTIONS: OwnOptions = {
    "workload": (
        _option(str, "--workload", "NAME", f"trainer (the Hugging Face Trainer) or loop (plain torch); {_DEFAULTS.workload}"),
        None,
    ),
    "steps": (_option(int, "--steps", "N", f"Counted steps at least; {_DEFAULTS.steps}"), None),
    "warmup": (_option(int, "--warmup", "N", f"Steps before them, kept apart; {_DEFAULTS.warmup}"), None),
    "max_steps": (_option(int, "--max-steps", "N", f"Counted steps at most, when times spread; {_DEFAULTS.max_steps}"), None),
    "budget_s": (_option(float, "--budget", "SECONDS", f"Stop stepping after this; {_DEFAULTS.budget_s:g}"), None),
    "timeout_s": (_option(float, "--timeout", "SECONDS", f"Kill the case after this; {_DEFAULTS.timeout_s:g}"), None),
    "lengths": (
        _option(str, "--lengths", "N,N,...", "Quantiles of the samples' tokens, evenly spaced from shortest to longest"),
        None,
    ),
    "seed": (_option(int, "--seed", "N", "Seed of weights, ids and lengths; 0"), None),
    "memory_limit": (
        _option(str, "--memory-limit", "SIZE|GPU", "Let the job have this much device memory, or what this card makes visible"),
        None,
    ),
    "checkpoint": (
        _option(str, "--checkpoint", "PATH|ID", "Real weights (safetensors) from a folder or the Hub; random ones otherwise"),
        None,
    ),
    "trust_remote_code": (
        Annotated[bool, typer.Option("--trust-remote-code", help="Run the code that ships with the model's checkpoint")],
        False,
    ),
    "save": (Annotated[bool, typer.Option("--save", help="Measure saving too, to a temporary folder")], False),
}


def run_options(said: dict[str, Any]) -> RunOptions:
    """Take the options of a run out of ``said``.

    Raises:
        UsageError: a value that cannot be used.
    """
    given = {name: said.pop(name) for name in RUN_OPTIONS}
    limit = given.pop("memory_limit")
    values = {name: value for name, value in given.items() if value not in (None, False)}
    if limit is not None:
        values["memory_limit_bytes"] = memory_limit_bytes(limit)
    return checked_options(values)


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
        return size_bytes("--memory-limit", text)
    if gpu.visible_memory_bytes is None:
        raise UsageError(f"how much memory {gpu.name} makes visible is not known: give --memory-limit a size")
    return gpu.visible_memory_bytes


def _lengths(value: object) -> tuple[int, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    try:
        lengths = tuple(int(part) for part in parts)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        lengths = ()
    if not lengths or min(lengths) < 1 or list(lengths) != sorted(lengths):
        raise UsageError(f"lengths must be rising whole numbers from 1 such as 32,180,400,1024, but they are {show(value)}")
    return lengths
