"""``plan check CONFIG...``: will these jobs fit here?  One line each, and the exit code of the worst."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.cli.calibration_choice import calibration_for
from planner.cli.outcome import Outcome, human_text
from planner.cli.predict import require
from planner.configs.sharding import Beside
from planner.domain.calibration import Calibration
from planner.errors import ExitCode, PlannerError, UsageError
from planner.intake.config_file import ConfigFile, read_config_file, with_flags
from planner.intake.fields import REQUEST_FIELDS
from planner.intake.request import ScenarioRequest, from_flags
from planner.intake.resolve import resolve
from planner.prediction import predict_with
from planner.report.check import Checked, check_sections, worst_exit_code
from planner.report.subject import Subject

_EXAMPLE = "plan check train.yaml --gpu 4090"
MAX_CONFIGS = 10_000


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How to read the files and how to answer; ``deepspeed`` and ``accelerate`` stand in for files that configs refer to."""

    output_format: str = "human"
    tool: str | None = None
    deepspeed: str | None = None
    accelerate: str | None = None
    calibration: str | None = None
    force: bool = False

    @property
    def beside(self) -> Beside:
        """The files given beside the configs."""
        deepspeed, accelerate = (Path(name) if name else None for name in (self.deepspeed, self.accelerate))
        return Beside(deepspeed, accelerate)


def check_configs(configs: Sequence[str], flags: Mapping[str, object], options: CheckOptions) -> Outcome:
    """Answer each config with the same flags, which win over it; one that cannot be answered does not stop the others.

    Raises:
        UsageError: a flag that cannot be used.
    """
    said = from_flags(flags)
    if len(configs) > MAX_CONFIGS:
        raise UsageError(f"at most {MAX_CONFIGS:,} configs at once, but {len(configs):,} are given")
    checked = [_check(config, said, options) for config in configs]
    code = worst_exit_code(checked)
    if options.output_format == "json":
        from planner.report.check_json import check_json

        return Outcome(check_json(checked), code)
    sections = check_sections(checked)
    if options.output_format == "markdown":
        from planner.report.markdown import to_markdown

        return Outcome(to_markdown(sections), code)
    return Outcome(human_text(sections), code)


def _check(config: str, said: ScenarioRequest, options: CheckOptions) -> Checked:
    read: ConfigFile | None = None
    try:
        read = read_config_file(config, options.tool, options.beside)
        request = with_flags(read, said)
        require(request, _EXAMPLE)
        subject = _answer(request, options)
    except PlannerError as error:
        return Checked(config, read.tool if read else "", failure=str(error), failure_code=error.exit_code)
    except Exception as error:
        # One file must not take the answers of the others with it.
        text = f"internal error ({type(error).__name__}: {str(error)[:200]}), please report it with the file"
        return Checked(config, read.tool if read else "", failure=text, failure_code=ExitCode.INTERNAL_ERROR)
    remarks = tuple((remark.origin, remark.text) for remark in read.remarks)
    return Checked(config, read.tool, subject, flags=flags_of(request), remarks=remarks, ignored=read.ignored)


def _answer(request: ScenarioRequest, options: CheckOptions) -> Subject:
    scenario = resolve(request, force=options.force)
    choice = calibration_for(scenario, options.calibration)
    scenario, model = choice.noted_on(scenario), choice.model
    coefficients = model.coefficients_for(scenario) if isinstance(model, Calibration) else model
    return Subject(scenario, predict_with(scenario, model), coefficients=coefficients)


def flags_of(request: ScenarioRequest) -> str:
    """What was said, as flags that can be typed after ``plan``."""
    words: list[str] = []
    for name, given in request.values.items():
        field, value = REQUEST_FIELDS[name], given.value
        if not field.on_command_line:
            continue
        if isinstance(value, bool):
            words.append(field.flag if value else f"--no-{field.flag.removeprefix('--')}")
        else:
            text = f"{value}B" if field.kind == "size" else ";".join(value) if isinstance(value, tuple) else str(value)
            words += [field.flag, text]
    return shlex.join(words)
