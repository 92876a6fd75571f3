"""``plan check CONFIG...``: will these jobs fit here?  What would make them fit,
and the exit code of the worst.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.api.checks import (
    CheckJob,
    allowed_codes,
    check_and_write,
    check_job,
    check_jobs,
    command_job,
    of_trainings,
)
from planner.api.files import CheckOptions
from planner.cli.outcome import Outcome, human_text
from planner.errors import UsageError
from planner.intake.given.request import ScenarioRequest, from_flags
from planner.report.check.checked import Checked, worst_exit_code
from planner.report.check.sections import BRIEF_ABOVE, check_sections

MAX_CONFIGS = 10_000


@dataclass(frozen=True, slots=True)
class CheckRun:
    """What is asked beside how files are read: launch files, what may pass,
    where the changed file goes, commands, dry runs.
    """

    accelerate: Sequence[str] = ()
    allow: str | None = None
    write: str | None = None
    commands: Sequence[str] = ()
    traces: bool = False


def check_configs(
    configs: Sequence[str], flags: Mapping[str, object], options: CheckOptions, run: CheckRun = CheckRun()
) -> Outcome:
    """Answer each config with the same flags, which win over it;
    one that cannot be answered does not stop the others.

    Raises:
        UsageError: a flag that cannot be used.
        InputFileError: a changed file cannot be written.
    """
    given, allowed = from_flags(flags), allowed_codes(run.allow)
    if not configs and not any(text.strip() for text in run.commands):
        raise UsageError("no config is given: plan check CONFIG..., or plan check --command 'COMMAND'")
    asked = [*check_jobs(configs, options, run.accelerate), *_command_jobs(options, run)]
    jobs = [replace(job, typed=_typed(flags)) for job in asked]
    if len(jobs) > MAX_CONFIGS:
        raise UsageError(f"at most {MAX_CONFIGS:,} configs at once, but {len(jobs):,} are given")
    checked = _checked(jobs, given, run)
    if run.traces:
        from planner.cli.check_trace import with_traces

        checked = with_traces(checked, flags)
    code = worst_exit_code(checked, allowed)
    if options.output_format == "json":
        from planner.report.check.document import check_json

        return Outcome(check_json(checked, code), code)
    sections = check_sections(checked, allowed)
    if options.output_format == "markdown":
        from planner.report.render.markdown import to_markdown

        return Outcome(to_markdown(sections), code)
    return Outcome(human_text(sections), code)


def _command_jobs(options: CheckOptions, run: CheckRun) -> list[CheckJob]:
    files: list[str | None] = [file for file in run.accelerate if "=" not in file]
    return [
        command_job(text, replace(options, accelerate=file))
        for text in run.commands
        for file in files or [None]
    ]


def _checked(jobs: Sequence[CheckJob], given: ScenarioRequest, run: CheckRun) -> list[Checked]:
    if run.write is not None:
        if len(jobs) != 1:
            raise UsageError(
                f"--write takes one config with one launch file at a time, but {len(jobs)} jobs are asked for"
            )
        return [check_and_write(jobs[0], given, run.write, run.allow)]
    advise = len(jobs) <= BRIEF_ABOVE
    return of_trainings(jobs, [check_job(job, given, advise=advise, allow=run.allow) for job in jobs])


def _typed(flags: Mapping[str, object]) -> str:
    """The flags as they were typed."""
    words: list[str] = []
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", str(value)]
    return shlex.join(words)
