"""``measure run``: one job for real, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from measure.cli.job_flags import need, over_config, with_length
from measure.cli.measuring_options import RUN_OPTIONS, run_options
from measure.output import write_remark, write_result
from measure.run.cases.hostfile import with_hosts
from planner.errors import ExitCode, UnknownNameError, show
from planner.intake.given.flags import Config, Force, OwnOptions, switch, valued

if TYPE_CHECKING:
    from measure.run.cases.bisection import Boundary
    from measure.run.cases.case import RunOptions
    from measure.run.store import Store

EXAMPLE = "measure run --model qwen2.5-0.5b --method lora --seq 512 --batch 2"
Out = Annotated[str, typer.Option("--out", metavar="DIR", help="Folder of the records")]
DEFAULT_OUT = "measurements"
OPTIONS: OwnOptions = {
    "config": (Config, None),
    "force": (Force, False),
    **RUN_OPTIONS,
    "out": (Out, DEFAULT_OUT),
    "solve": valued("--solve", "batch|seq", "Find the largest that runs; every probe is recorded"),
    "hostfile": valued(
        "--hostfile", "FILE", "Nodes and GPUs of one job, as DeepSpeed reads them; run it on each node"
    ),
    "as_json": switch("--json", "Write the record as JSON"),
}


def run(**given: Any) -> int:
    """Run training steps of one job on this machine and record what they need."""
    need("measure", "torch", "transformers", "peft", "accelerate", "psutil")
    from measure.run.cases.bisection import boundary_text
    from measure.run.single import measure_one
    from measure.run.store import Store

    as_json, store, quantity = given.pop("as_json"), Store(Path(given.pop("out"))), given.pop("solve")
    if (hostfile := given.pop("hostfile")) is not None:
        given = with_hosts(given, hostfile)
    options = run_options(given)
    values, force = values_of(given), given.pop("force")
    if quantity is not None:
        boundary = solve_for(quantity, values, options, store=store, force=force)
        write_result(boundary_text(boundary))
        return int(outcome_code(boundary.outcome))
    finished = measure_one(values, options, store=store, force=force, say=write_remark)
    from measure.run.record_text import record_json, record_text

    write_result(record_json(finished) if as_json else record_text(finished))
    return int(outcome_code(finished.measured.record.outcome))


def solve_for(
    quantity: str, values: dict[str, Any], options: RunOptions, *, store: Store, force: bool
) -> Boundary:
    """The boundary of one job.

    Raises:
        UnknownNameError: not a quantity that can be solved for.
    """
    from measure.run.cases.bisection import QUANTITIES, solve

    for known in QUANTITIES:
        if quantity == known:
            return solve(values, options, known, store=store, force=force, say=write_remark)
    raise UnknownNameError("quantity", show(quantity), QUANTITIES, hint=f"allowed: {', '.join(QUANTITIES)}")


def values_of(given: dict[str, Any]) -> dict[str, Any]:
    """What was given about the job, flags over the file.

    Raises:
        UsageError: model or method are missing, or a value cannot be used.
    """
    from planner.intake.given.request import from_flags

    config = given.pop("config")
    request = over_config(
        from_flags({name: value for name, value in given.items() if name != "force"}), config
    )
    request = with_length(request, EXAMPLE)
    return {name: each.value for name, each in request.values.items()}


def outcome_code(outcome: str) -> ExitCode:
    """Exit code of a case."""
    codes = {"ok": ExitCode.FITS, "oom": ExitCode.GPU_MEMORY_SHORT, "host_oom": ExitCode.HOST_MEMORY_SHORT}
    return codes.get(outcome, ExitCode.INTERNAL_ERROR)
