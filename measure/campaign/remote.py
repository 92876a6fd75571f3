"""A campaign through a cluster's scheduler, by submitit:
each job runs its share of the cases on a node of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure.campaign.file import PlannedCase
from measure.run.processes import worker_environment
from measure.run.readings.nvml import look_for_gpus
from planner.errors import UnknownNameError, UsageError, how_to_install, show
from planner.units import MINUTE_S

EXECUTORS = ("slurm", "local")
_SPARE_MINUTES = 10
_DEFAULT_MINUTES = 60


@dataclass(frozen=True, slots=True)
class Submission:
    """How jobs are asked for.  ``partition`` and ``more`` are Slurm's;
    ``budget_s`` is the time for the cases of each job.
    """

    executor: str
    jobs: int
    budget_s: float | None
    partition: str | None
    history: bool = False
    retry: str | None = None
    more: tuple[str, ...] = ()
    wait: bool = False


def share_command(
    file: Path, out: Path, share: str, submission: Submission, card: int | None = None
) -> list[str]:
    """What one job runs.  Each has a folder of its own:
    what a share has recorded is counted in its folder alone.

    Everything else in its environment is the job's own, because the scheduler says there which cards it has.
    The environment of the submitting machine is not passed on.  ``card`` is the one of a job on this machine,
    where there are any.
    """
    number = share.partition("/")[0]
    own_card = [] if card is None else [f"CUDA_VISIBLE_DEVICES={card}"]
    python = ["env", f"PYTHONPATH={worker_environment()['PYTHONPATH']}", *own_card, sys.executable]
    command = [
        *python,
        "-m",
        "measure",
        "campaign",
        str(file),
        "--share",
        share,
        "--out",
        str(out / f"job-{number}"),
    ]
    if submission.budget_s is not None:
        command += ["--time-budget", f"{submission.budget_s:g}s"]
    command += ["--retry", submission.retry] if submission.retry is not None else []
    return [
        *command,
        *(["--history"] if submission.history else []),
        *(["--wait"] if submission.wait else []),
    ]


def submit(file: Path, out: Path, submission: Submission) -> list[Any]:
    """Hand the jobs to the scheduler; returns submitit's jobs.

    Raises:
        UsageError: an unknown executor, submitit is not installed, the scheduler is not here,
        or an option that is none.
    """
    if submission.executor not in EXECUTORS:
        raise UnknownNameError(
            "executor", show(submission.executor), EXECUTORS, hint=f"allowed: {', '.join(EXECUTORS)}"
        )
    try:
        import submitit
        from submitit.core.utils import CommandFunction
    except ImportError:
        raise UsageError(f"submitit is not installed; {how_to_install('slurm')}") from None
    cards = _cards(submission)
    folder = (out / "jobs").absolute()
    try:
        executor: Any = submitit.AutoExecutor(folder=folder, cluster=submission.executor)
    except RuntimeError as error:
        raise UsageError(f"executor '{submission.executor}' cannot be used here: {error}") from None
    minutes = _DEFAULT_MINUTES if submission.budget_s is None else round(submission.budget_s / MINUTE_S)
    settings = _slurm_settings(submission) if submission.executor == "slurm" else {}
    executor.update_parameters(timeout_min=minutes + _SPARE_MINUTES, **settings)
    shares = [f"{number}/{submission.jobs}" for number in range(1, submission.jobs + 1)]
    commands = [
        share_command(file.absolute(), out.absolute(), share, submission, card)
        for share, card in zip(shares, cards, strict=True)
    ]
    return [executor.submit(CommandFunction(command)) for command in commands]


def _cards(submission: Submission) -> list[int | None]:
    """The card of each job: a scheduler says it itself, jobs on this machine run at once and take one each.

    submitit 1.5 hides all cards from a job of its local executor that it was not told of.

    Raises:
        UsageError: fewer cards than jobs, which would measure each other.
    """
    gpus = look_for_gpus()[1] if submission.executor == "local" else ()
    if not gpus:
        return [None] * submission.jobs
    if submission.jobs > len(gpus):
        raise UsageError(
            f"{submission.jobs} jobs on this machine would share {len(gpus)} GPUs and measure each other: "
            f"say --jobs {len(gpus)}"
        )
    return [gpu.index for gpu in gpus[: submission.jobs]]


def _slurm_settings(submission: Submission) -> dict[str, Any]:
    """One GPU for each job, and what the cluster asks for beside that."""
    settings: dict[str, Any] = {"gpus_per_node": 1}
    if submission.partition is not None:
        settings["slurm_partition"] = submission.partition
    more: dict[str, str] = {}
    for text in submission.more:
        name, _, value = text.partition("=")
        if not (name.replace("-", "").isalnum() and value.isprintable() and value):
            raise UsageError(
                f"--slurm must be like account=lab, an option of sbatch, but it is '{show(text)}'"
            )
        more[name] = value
    return settings | ({"slurm_additional_parameters": more} if more else {})


def parse_share(text: str) -> tuple[int, int]:
    """Number and count of a share such as ``2/4``.

    Raises:
        UsageError: not such a share.
    """
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise UsageError(f"--share must be like 2/4, the second of four, but it is '{show(text)}'")
    return int(number), int(count)


def take_share(cases: Sequence[PlannedCase], text: str | None) -> tuple[PlannedCase, ...]:
    """Every n-th of ``cases``, so that each share is as mixed as the whole;
    all of them when nothing is given.
    """
    if text is None:
        return tuple(cases)
    number, count = parse_share(text)
    return tuple(cases[number - 1 :: count])
