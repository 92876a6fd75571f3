"""Options that say how to measure, for every command that runs cases."""

from __future__ import annotations

from typing import Any, Final

from measure.run.cases.case import RunOptions
from measure.run.cases.run_options import checked_options, memory_limit_bytes
from planner.intake.given.flags import OwnOptions, switch, valued

_DEFAULTS: Final = RunOptions()


RUN_OPTIONS: OwnOptions = {
    "workload": valued(
        "--workload",
        "NAME",
        f"trainer (the Hugging Face Trainer) or loop (plain torch)  [default: {_DEFAULTS.workload}]",
    ),
    "steps": valued("--steps", "N", f"Counted steps at least, from 1  [default: {_DEFAULTS.steps}]", int),
    "warmup": valued(
        "--warmup", "N", f"Steps before them, kept apart, from 0  [default: {_DEFAULTS.warmup}]", int
    ),
    "max_steps": valued(
        "--max-steps", "N", f"Counted steps at most, when times spread  [default: {_DEFAULTS.max_steps}]", int
    ),
    "budget_s": valued(
        "--budget", "SECONDS", f"Stop stepping after this, above 0  [default: {_DEFAULTS.budget_s:g}]", float
    ),
    "timeout_s": valued(
        "--timeout",
        "SECONDS",
        f"Kill the case after this, above 0  [default: {_DEFAULTS.timeout_s:g}]",
        float,
    ),
    "lengths": valued(
        "--lengths", "N,N,...", "Quantiles of the samples' tokens, evenly spaced from shortest to longest"
    ),
    "seed": valued("--seed", "N", "Seed of weights, ids and lengths  [default: 0]", int),
    "memory_limit": valued(
        "--memory-limit",
        "SIZE|GPU",
        "Let the job have this much device memory, or what this card makes visible",
    ),
    "checkpoint": valued(
        "--checkpoint",
        "PATH|ID",
        "Real weights (safetensors) from a folder or the Hub; random ones otherwise",
    ),
    "trust_remote_code": switch("--trust-remote-code", "Run the code that ships with the model's checkpoint"),
    "history": switch("--history", "Keep the allocator's events up to the end of the warm-up (GPU)"),
    "nvme_path": valued("--nvme-path", "DIR", "Folder on an NVMe disk for --offload ...-nvme"),
    "rendezvous": valued(
        "--rendezvous", "HOST:PORT", "Where the nodes of --nodes meet; the same command on each"
    ),
    "save": switch("--save", "Measure saving too, to a temporary folder"),
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
