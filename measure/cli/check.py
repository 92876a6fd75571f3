"""``measure check FILE...`` and ``measure env``: whether records can be trusted, and what this machine is."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from measure.cli.job_flags import need
from measure.output import write_result
from planner.errors import ExitCode

Json = Annotated[bool, typer.Option("--json", help="Write JSON")]


def check(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Record files (JSONL); patterns may be quoted")
    ],
    as_json: Json = False,
) -> int:
    """Look at records: quality, repeats that disagree, environments that must not be merged,
    lines left out.
    """
    from measure.run.cases.trust import check_records, findings_text
    from planner.records import read_records

    findings = check_records(read_records(files, by_row=True))
    write_result(json.dumps(findings, indent=2) + "\n" if as_json else findings_text(findings))
    return int(ExitCode.FITS)


def env(as_json: Json = False) -> int:
    """Say what a measurement on this machine would be made on."""
    need("measure", "psutil")
    from measure.run.readings.environment import environment_key
    from measure.run.readings.machine import this_machine

    machine = this_machine()
    key = environment_key(machine.environment)
    if as_json:
        facts = {
            "environment_key": key,
            "gpu_id": machine.gpu_id,
            "unusable": machine.unusable,
            **machine.environment,
        }
        write_result(json.dumps(facts, indent=2) + "\n")
    else:
        from measure.run.readings.environment import environment_text

        write_result(environment_text(key, machine.gpu_id, machine.environment, machine.unusable))
    return int(ExitCode.FITS)
