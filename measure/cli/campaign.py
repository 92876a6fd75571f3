"""``measure campaign FILE``: many cases, resumable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from measure.cli.job_flags import need
from measure.cli.run import DEFAULT_OUT, Out
from measure.output import write_remark, write_result
from planner.errors import ExitCode, UsageError
from planner.intake.given.flags import Force, OwnOptions, switch, valued

if TYPE_CHECKING:
    from measure.campaign.file import Campaign
    from measure.campaign.runner import Agenda


OPTIONS: OwnOptions = {
    "file": (
        Annotated[
            str, typer.Argument(metavar="FILE", help="Campaign file, such as data/campaigns/first.toml")
        ],
        ...,
    ),
    "time_budget": valued("--time-budget", "TIME", "Stop after this, such as 9m"),
    "out": (Out, DEFAULT_OUT),
    "dry_run": switch("--dry-run", "Print the cases in their order and run nothing"),
    "history": switch("--history", "Keep the allocator's history of every case (GPU)"),
    "share": valued("--share", "I/N", "Run the I-th of N shares of the cases"),
    "executor": valued("--executor", "NAME", "slurm or local: submit jobs"),
    "jobs": (
        Annotated[
            int,
            typer.Option(
                "--jobs", metavar="N", min=1, max=1000, help="With --executor: jobs that share the cases"
            ),
        ],
        1,
    ),
    "partition": valued("--partition", "NAME", "With --executor slurm"),
    "slurm": valued("--slurm", "NAME=VALUE", "With --executor slurm: an option of sbatch", list[str]),
    "wait": switch("--wait", "Wait for another campaign in the same folder; refused otherwise"),
    "retry": valued("--retry", "OUTCOMES", "Run what is recorded so once more, such as crash,timeout"),
    "force": (Force, False),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What was given, by the names of :data:`OPTIONS`."""

    file: str
    time_budget: str | None
    out: str
    dry_run: bool
    history: bool
    share: str | None
    executor: str | None
    jobs: int
    partition: str | None
    slurm: list[str] | None
    wait: bool
    retry: str | None
    force: bool


def campaign(**given: Any) -> int:
    """Run the cases of a file in the order that teaches most; what is recorded already is skipped."""
    from measure.campaign.file import read_campaign
    from measure.run.cases.run_options import duration_s, outcomes

    asked = Asked(**given)
    budget_s = None if asked.time_budget is None else duration_s("--time-budget", asked.time_budget)
    outcomes("--retry", asked.retry)  # before a job is submitted that would only say the same
    for flag, value in (("--partition", asked.partition), ("--slurm", asked.slurm)):
        if value and asked.executor != "slurm":
            raise UsageError(f"{flag} says nothing without Slurm: add --executor slurm, or leave {flag} out")
    planned = read_campaign(asked.file)
    if asked.history:
        planned = planned.with_histories()
    if asked.executor is not None:
        return _submit(asked, asked.executor, budget_s)
    return _run(asked, planned, budget_s)


def _submit(asked: Asked, executor: str, budget_s: float | None) -> int:
    """Hand the cases to a scheduler."""
    from measure.campaign.remote import Submission, submit

    out = Path(asked.out)
    more = tuple(asked.slurm or ())
    submission = Submission(
        executor, asked.jobs, budget_s, asked.partition, asked.history, asked.retry, more, asked.wait
    )
    submitted = submit(Path(asked.file), out, submission)
    write_result(
        f"submitted to {executor}: {', '.join(str(job.job_id) for job in submitted)}; records: {out}/job-*\n"
    )
    return int(ExitCode.FITS)


def _run(asked: Asked, planned: Campaign, budget_s: float | None) -> int:
    """Run the cases, or this process's share of them, on this machine."""
    from measure.campaign.campaign_text import agenda_text, tally_text
    from measure.campaign.order import in_teaching_order
    from measure.campaign.progress import open_progress
    from measure.campaign.remote import take_share
    from measure.campaign.runner import plan_agenda, run_agenda
    from measure.run.cases.run_options import outcomes
    from measure.run.folder_lock import folder_lock
    from measure.run.readings.machine import this_machine
    from measure.run.store import Store

    planned = replace(planned, cases=take_share(in_teaching_order(planned.cases), asked.share))
    need("measure", "torch", "transformers", "peft", "accelerate", "psutil")
    machine, store, retry = this_machine(), Store(Path(asked.out)), outcomes("--retry", asked.retry)
    agenda = plan_agenda(planned, machine, store, force=asked.force, retry=retry)
    if asked.dry_run:
        _warn(agenda)
        write_result(agenda_text(planned.title, agenda))
        return int(ExitCode.FITS)
    if not agenda.queue and not agenda.recorded:
        raise UsageError(f"{asked.file}: no case can run here: {agenda.refused[0].reason}")
    store.prepare()
    with folder_lock(store.folder, share=asked.share, wait=asked.wait, say=write_remark):
        # Once more, because another campaign may have recorded cases until now.
        agenda = plan_agenda(planned, machine, store, force=asked.force, retry=retry)
        _warn(agenda)
        with open_progress(len(agenda.queue)) as progress:
            tally = run_agenda(agenda, machine, store, progress, budget_s)
    write_result(tally_text(planned.title, agenda, tally, store.folder))
    return int(ExitCode.FITS if tally.same_crash is None else ExitCode.INTERNAL_ERROR)


def _warn(agenda: Agenda) -> None:
    if agenda.left_out is not None:
        write_remark(agenda.left_out)
