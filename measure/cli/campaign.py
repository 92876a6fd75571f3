"""``measure campaign FILE``: many cases, resumable."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from measure.cli.run import DEFAULT_OUT, Out
from measure.cli.said import need
from planner.errors import ExitCode, UsageError
from planner.intake.flags import Force


def campaign(  # noqa: PLR0913, PLR0917 - typer reads the options from the signature
    file: Annotated[str, typer.Argument(metavar="FILE", help="Campaign file, such as data/campaigns/first.toml")],
    time_budget: Annotated[str | None, typer.Option("--time-budget", metavar="TIME", help="Stop after this, such as 9m")] = None,
    out: Out = DEFAULT_OUT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cases in their order and run nothing")] = False,
    history: Annotated[bool, typer.Option("--history", help="Keep the allocator's history of every case (GPU)")] = False,
    share: Annotated[str | None, typer.Option("--share", metavar="I/N", help="Run the I-th of N shares of the cases")] = None,
    executor: Annotated[str | None, typer.Option("--executor", metavar="NAME", help="slurm or local: submit jobs")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=1000, help="With --executor: jobs that share the cases")] = 1,
    partition: Annotated[str | None, typer.Option("--partition", metavar="NAME", help="With --executor slurm")] = None,
    force: Force = False,
) -> int:
    """Run the cases of a file in the order that teaches most; what is recorded already is skipped."""
    from measure.campaign.file import read_campaign
    from measure.campaign.order import in_teaching_order
    from measure.campaign.progress import open_progress
    from measure.campaign.remote import Submission, submit, take_share
    from measure.campaign.runner import plan_agenda, run_agenda
    from measure.campaign.summary import agenda_text, tally_text
    from measure.machine import this_machine
    from measure.options import duration_s
    from measure.store import Store

    budget_s = None if time_budget is None else duration_s("--time-budget", time_budget)
    planned, store = read_campaign(file), Store(Path(out))
    if history:
        planned = planned.with_histories()
    if executor is not None:
        submitted = submit(Path(file), Path(out), Submission(executor, jobs, budget_s, partition, history))
        sys.stdout.write(f"submitted to {executor}: {', '.join(str(job.job_id) for job in submitted)}; records: {out}/job-*\n")
        return int(ExitCode.FITS)
    planned = replace(planned, cases=take_share(in_teaching_order(planned.cases), share))
    need("measure", "torch", "transformers", "peft", "accelerate", "psutil")
    machine = this_machine()
    agenda = plan_agenda(planned, machine, store, force=force)
    if dry_run:
        sys.stdout.write(agenda_text(planned.title, agenda))
        return int(ExitCode.FITS)
    if not agenda.queue and not agenda.recorded:
        raise UsageError(f"{file}: no case can run here: {agenda.refused[0].reason}")
    store.prepare()
    with open_progress(len(agenda.queue)) as progress:
        tally = run_agenda(agenda, machine, store, progress, budget_s)
    sys.stdout.write(tally_text(planned.title, agenda, tally, store.folder))
    return int(ExitCode.FITS)
