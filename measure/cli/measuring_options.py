"""Options that say how to measure, for every command that runs cases."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from measure.run.cases.case import RunOptions
from measure.run.cases.run_options import checked_options, memory_limit_bytes
from planner.intake.given.flags import OwnOptions

_DEFAULTS: Final = RunOptions()


def _option(kind: Any, flag: str, metavar: str, text: str) -> Any:
    return Annotated[kind | None, typer.Option(flag, metavar=metavar, help=text, show_default=False)]


RUN_OPTIONS: OwnOptions = {
    "workload": (
        _option(
            str,
            "--workload",
            "NAME",
            f"trainer (the Hugging Face Trainer) or loop (plain torch)  [default: {_DEFAULTS.workload}]",
        ),
        None,
    ),
    "steps": (
        _option(int, "--steps", "N", f"Counted steps at least, from 1  [default: {_DEFAULTS.steps}]"),
        None,
    ),
    "warmup": (
        _option(
            int, "--warmup", "N", f"Steps before them, kept apart, from 0  [default: {_DEFAULTS.warmup}]"
        ),
        None,
    ),
    "max_steps": (
        _option(
            int,
            "--max-steps",
            "N",
            f"Counted steps at most, when times spread  [default: {_DEFAULTS.max_steps}]",
        ),
        None,
    ),
    "budget_s": (
        _option(
            float,
            "--budget",
            "SECONDS",
            f"Stop stepping after this, above 0  [default: {_DEFAULTS.budget_s:g}]",
        ),
        None,
    ),
    "timeout_s": (
        _option(
            float,
            "--timeout",
            "SECONDS",
            f"Kill the case after this, above 0  [default: {_DEFAULTS.timeout_s:g}]",
        ),
        None,
    ),
    "lengths": (
        _option(
            str,
            "--lengths",
            "N,N,...",
            "Quantiles of the samples' tokens, evenly spaced from shortest to longest",
        ),
        None,
    ),
    "seed": (_option(int, "--seed", "N", "Seed of weights, ids and lengths  [default: 0]"), None),
    "memory_limit": (
        _option(
            str,
            "--memory-limit",
            "SIZE|GPU",
            "Let the job have this much device memory, or what this card makes visible",
        ),
        None,
    ),
    "checkpoint": (
        _option(
            str,
            "--checkpoint",
            "PATH|ID",
            "Real weights (safetensors) from a folder or the Hub; random ones otherwise",
        ),
        None,
    ),
    "trust_remote_code": (
        Annotated[
            bool,
            typer.Option("--trust-remote-code", help="Run the code that ships with the model's checkpoint"),
        ],
        False,
    ),
    "history": (
        Annotated[
            bool,
            typer.Option("--history", help="Keep the allocator's events up to the end of the warm-up (GPU)"),
        ],
        False,
    ),
    "nvme_path": (_option(str, "--nvme-path", "DIR", "Folder on an NVMe disk for --offload ...-nvme"), None),
    "rendezvous": (
        _option(
            str, "--rendezvous", "HOST:PORT", "Where the nodes of --nodes meet; the same command on each"
        ),
        None,
    ),
    "save": (
        Annotated[bool, typer.Option("--save", help="Measure saving too, to a temporary folder")],
        False,
    ),
}


def run_options(given: dict[str, Any]) -> RunOptions:
    """Take the options of a run out of ``given``.

    Raises:
        UsageError: a value that cannot be used.
    """
    named = {name: given.pop(name) for name in RUN_OPTIONS}
    limit = named.pop("memory_limit")
    # A switch that was not given is False; a number that was given may be 0,
    # which is for the checks to refuse.
    values = {name: value for name, value in named.items() if value is not None and value is not False}
    if limit is not None:
        values["memory_limit_bytes"] = memory_limit_bytes(limit)
    return checked_options(values)
