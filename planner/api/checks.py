"""Config files -> answers with what would make them fit, what starts them, and, where asked for,
the changed files.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.api.bounded import answer_bounded
from planner.api.files import CheckOptions, flags_of, leaves_length_open, read_for
from planner.api.fixes import FileJob, file_job, with_fixes
from planner.api.launch_commands import COMMAND, command_files, is_script, numbers_of
from planner.api.open_version import answer_of_versions
from planner.api.write_fixes import output_of, write_all
from planner.configs.launchers.launch import NO_LAUNCH_FILE, short_path
from planner.configs.launchers.launch_lines import Launch, launch_line
from planner.configs.markdown import MARKDOWN
from planner.errors import (
    ExitCode,
    NoTrainingError,
    PlannerError,
    UnknownArchitectureError,
    UnknownNameError,
    UsageError,
)
from planner.files.reading import reading_instead
from planner.intake.given.config_file import ConfigFile, read_config_file, with_flags
from planner.intake.given.request import ScenarioRequest
from planner.report.bounds.sections import headline
from planner.report.check.checked import Checked, Written
from planner.report.prediction.subject import Subject

ALLOWED = {"uncertain": ExitCode.UNCERTAIN, "not-modelled": ExitCode.NOT_MODELLED}
"""Words of ``--allow``: what then counts as fitting."""
_NO_REMEDY = "no change that these files have a key for was found to make it fit"


@dataclass(frozen=True, slots=True)
class CheckJob:
    """One config with its own options.

    ``named``: its launch file belongs to its name, because several were given.  ``typed``: the flags as
    somebody typed them.  ``text``: the command that ``config`` stands for.  ``number``: which command of a
    script with several.
    """

    config: str
    options: CheckOptions
    named: bool = False
    typed: str = ""
    text: str = ""
    number: int | None = None

    @property
    def name(self) -> str:
        """What its answer is called."""
        return self.config if self.number is None else f"{self.config}#{self.number}"

    @property
    def is_command(self) -> bool:
        """Whether it is a command line, or a script that has one."""
        return bool(self.text) or is_script(self.config)


def allowed_codes(words: str | None) -> frozenset[ExitCode]:
    """The exit codes that ``--allow`` lets pass.

    Raises:
        UnknownNameError: a word that is none of them.
    """
    names = [word.strip().lower() for word in (words or "").split(",") if word.strip()]
    for name in names:
        if name not in ALLOWED:
            raise UnknownNameError(
                "word of --allow", name[:60], ALLOWED, hint=f"allowed: {', '.join(ALLOWED)}"
            )
    return frozenset(ALLOWED[name] for name in names)


def check_jobs(
    configs: Sequence[str], options: CheckOptions, accelerate: Sequence[str]
) -> tuple[CheckJob, ...]:
    """Each config with each launch file that was given for it: ``CONFIG=FILE`` is for that config,
    ``FILE`` for all others.  A script with several commands is as many jobs.

    Raises:
        UsageError: a launch file for a config that is not there.
    """
    own: dict[str, list[str]] = {config: [] for config in configs}
    for_all: list[str] = []
    for text in accelerate:
        config, mark, file = text.partition("=")
        if not mark or Path(text).is_file():
            for_all.append(text)
        elif config in own:
            own[config].append(file)
        else:
            raise UsageError(
                f"--accelerate {text}: '{config}' is none of the configs; write CONFIG=FILE with its "
                "name as given"
            )
    found = list[CheckJob]()
    for config in configs:
        files = own[config] or for_all
        jobs = [CheckJob(config, replace(options, accelerate=file), len(accelerate) > 1) for file in files]
        jobs = jobs or [CheckJob(config, options)]
        numbers = numbers_of(config) if is_script(config) else (None,)
        found += [replace(job, number=number) for number in numbers for job in jobs]
    return tuple(found)


def check_job(
    job: CheckJob, given: ScenarioRequest, *, advise: bool = True, allow: str | None = None
) -> Checked:
    """Answer one config; what was ``given`` wins over it.  Why there is no answer is part of the result,
    never raised.

    ``advise``: look for changes of its files that make it fit.
    """
    if job.is_command:
        return _check_command(job, given, advise=advise, allow=allow)
    return _answered(job, given, advise=advise, allow=allow)[0]


def of_trainings(jobs: Sequence[CheckJob], checked: Sequence[Checked]) -> list[Checked]:
    """The answers of ``jobs``, without commands of a script that train nothing beside another of it that may."""
    pairs = list(zip(jobs, checked, strict=True))
    train = {job.config for job, each in pairs if each.trains}
    return [each for job, each in pairs if each.trains or job.number is None or job.config not in train]


def _check_command(job: CheckJob, given: ScenarioRequest, *, advise: bool, allow: str | None) -> Checked:
    """As a config with the command's arguments, beside a launch file with its launcher's options."""
    try:
        files = command_files(job.config, job.text, job.options, job.number)
    except PlannerError as error:
        return Checked(job.name, failure=str(error), failure_code=error.exit_code)
    with reading_instead(files.texts):
        checked = _answered(replace(job, options=files.options), given, advise=advise, allow=allow)[0]
    guessed = checked.failure_code == ExitCode.NOT_MODELLED and not checked.tool.startswith("Transformers")
    if guessed and not any(words in checked.failure for words in ("--tool", "unknown key")):
        checked = replace(checked, failure=f"{checked.failure}{files.way_out}")
    flags = job.typed or flags_of(given)
    words = shlex.join(
        ["plan", "check", "--command", job.text] if job.text else ["plan", "check", job.config]
    )
    bash = "" if job.config.endswith(MARKDOWN) else f"bash {shlex.quote(job.config)}"
    start = job.text.strip() if job.text else bash
    return replace(
        checked,
        config=job.name,
        remarks=(*(((job.config, files.remark),) if files.remark else ()), *checked.remarks),
        command=f"{words} {flags}".strip(),
        launch=start,
        launch_file=job.options.accelerate or "",
        remedy=(),
        details=f"plan {checked.flags} --details" if checked.flags else "",
    )


def command_job(text: str, options: CheckOptions) -> CheckJob:
    """The job that a command line starts."""
    return CheckJob(COMMAND, options, text=text)


def check_and_write(job: CheckJob, given: ScenarioRequest, target: str, allow: str | None = None) -> Checked:
    """As :func:`check_job`, and write the config with the first changes that make it fit as ``target``;
    as it is where it fits.

    Raises:
        UsageError: ``target`` cannot be the name of the new file.
        InputFileError: a file cannot be changed or written.
    """
    if job.is_command:
        raise UsageError("--write changes a config file, and a command line is none: change its arguments")
    if job.config.endswith(MARKDOWN):
        raise UsageError("--write changes a config file: write the block of the Markdown file into one first")
    checked, file = _answered(job, given, advise=True, allow=allow)
    if checked.subject is None or file is None:
        return checked
    if checked.exit_code != ExitCode.FITS and not checked.remedy:
        why = "what is left open decides: say it first" if checked.fixes is None else _NO_REMEDY
        return replace(checked, remarks=(*checked.remarks, (target, f"not written, because {why}")))
    output = output_of(file, [edit for fix in checked.remedy for edit in fix.edits], Path(target))
    write_all(output)
    again = CheckJob(target, output.options, typed=job.typed)
    return replace(
        checked,
        written=Written(tuple(map(str, output.texts)), check_job(again, given, advise=False, allow=allow)),
    )


def _answered(
    job: CheckJob, given: ScenarioRequest, *, advise: bool, allow: str | None
) -> tuple[Checked, FileJob | None]:
    options = replace(job.options, flags=frozenset(given.values))
    job = replace(job, options=read_for(options, given))
    read: ConfigFile | None = None
    failed = Checked(job.config, accelerate=_own_launch_file(job))
    try:
        read = read_config_file(job.config, job.options.tool, job.options.beside)
        failed = replace(failed, tool=read.tool)
        checked, read, is_open = answer_of_versions(job.config, read, given, job.options)
        options = replace(job.options, stack=read.request.get("stack") or "")
        file = file_job(job.config, read, given, options)
        checked = replace(checked, accelerate=failed.accelerate, **_launch_files_left(checked, read))
        checked = _with_lines(checked, file, job, given, allow)
        # What fits with the shortest samples may not fit with those of the data.
        advise = advise and not is_open and not leaves_length_open(read, given)
        return (with_fixes(file, checked) if advise else checked), file
    except UnknownArchitectureError as error:
        return _bounded(failed, read, given, job, error), None
    except PlannerError as error:
        trains = not isinstance(error, NoTrainingError)
        return replace(failed, failure=str(error), failure_code=error.exit_code, trains=trains), None
    except Exception as error:  # noqa: BLE001 - one file must not take the answers of the others with it
        text = f"internal error ({type(error).__name__}: {str(error)[:200]}), please report it with the file"
        return replace(failed, failure=text, failure_code=ExitCode.INTERNAL_ERROR), None


def _bounded(
    failed: Checked,
    read: ConfigFile | None,
    given: ScenarioRequest,
    job: CheckJob,
    unknown: UnknownArchitectureError,
) -> Checked:
    """``failed`` with bounds in place of an answer, where there are any; the dry run is that of its tool."""
    refused = replace(failed, failure=str(unknown), failure_code=unknown.exit_code)
    if read is None or leaves_length_open(read, given):
        return refused
    try:
        bounded = answer_bounded(with_flags(read, given), unknown, force=job.options.force)
    except PlannerError as error:
        return replace(refused, failure=str(error), failure_code=error.exit_code)
    words = job.typed or flags_of(given)
    bounded = replace(bounded, settle=f"{shlex.join(['plan', 'check', job.config])} {words} --trace".strip())
    said = headline(bounded).text
    return replace(failed, failure=said, failure_code=bounded.exit_code, bounds=bounded)


def _launch_files_left(checked: Checked, read: ConfigFile) -> dict[str, Any]:
    """Launch files that were not taken belong to what is assumed,
    which says so only where there are several GPUs.
    """
    remarks = tuple(remark for remark in checked.remarks if not remark[1].startswith(NO_LAUNCH_FILE))
    return {"candidates": tuple(map(short_path, read.candidates)), "remarks": remarks}


def _own_launch_file(job: CheckJob) -> str:
    return (job.options.accelerate or "") if job.named else ""


def _with_lines(
    checked: Checked, file: FileJob, job: CheckJob, given: ScenarioRequest, allow: str | None
) -> Checked:
    """``checked`` with the check as a command, and the line that starts the job."""
    options = job.options
    words = ["plan", "check", job.config]
    for flag, value in (
        ("tool", options.tool),
        ("deepspeed", options.deepspeed),
        ("accelerate", options.accelerate),
        ("calibration", options.calibration),
        ("allow", allow),
    ):
        words += [f"--{flag}", value] if value else []
    flags = job.typed or flags_of(given)
    command = " ".join(
        part for part in (shlex.join(words), flags, "--force" if options.force else "") if part
    )
    names = _LaunchNames.of(file)
    said_alone = names.accelerate or names.deepspeed or (options.accelerate or "")
    return replace(
        checked, command=command, launch=_launch(file, names, checked.subject), launch_file=said_alone
    )


@dataclass(frozen=True, slots=True)
class _LaunchNames:
    """Files that the line which starts the job has to name."""

    accelerate: str
    deepspeed: str

    @classmethod
    def of(cls, file: FileJob) -> _LaunchNames:
        """The launch file, and a DeepSpeed file that no other file names."""
        files = file.files
        inside = files.accelerate.table.get("deepspeed_config") if files.accelerate is not None else None
        named = files.config.table.get("deepspeed") or (
            isinstance(inside, dict) and inside.get("deepspeed_config_file")
        )
        accelerate = "" if files.accelerate is None else str(files.accelerate.path)
        deepspeed = "" if files.deepspeed is None or named else str(files.deepspeed.path)
        return cls(accelerate, deepspeed)


def _launch(file: FileJob, names: _LaunchNames, subject: Subject | None) -> str:
    if subject is None:
        return ""
    hardware, recipe = subject.scenario.hardware, subject.scenario.recipe
    engine = recipe.uses_deepspeed or recipe.uses_fsdp
    where = file.config, names.accelerate, names.deepspeed, hardware.gpus_per_node, hardware.nodes
    mixes = "dataset_mixer" in file.files.config.table
    spread = recipe.parallel.in_turn
    launch = Launch(*where, engine, recipe.task, recipe.has_reference, mixes, spread)
    return launch_line(file.files.tool, launch)
