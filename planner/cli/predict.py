"""``plan --model ... --gpu ...``: predict one job."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.cli.calibration_choice import calibration_for
from planner.cli.outcome import Outcome, human_text
from planner.domain.calibration import Calibration
from planner.domain.coefficients import Coefficients
from planner.errors import UsageError
from planner.intake.request import ScenarioRequest, from_flags
from planner.prediction import predict_with
from planner.report.subject import Subject

EXAMPLE = "plan --model 7b --method qlora --gpu 4090 --seq 1024"
# Each of these has no default; a card that is not in the catalog may be given by its memory alone.
_REQUIRED = (("model",), ("method",), ("gpu", "gpu_memory"), ("seq",))


@dataclass(frozen=True, slots=True)
class Options:
    """How to read and answer, beside what the job is."""

    config: str | None = None
    output_format: str = "human"
    details: bool = False
    explain: bool = False
    force: bool = False
    calibration: str | None = None
    trace: bool = False


def predict(flags: Mapping[str, object], options: Options) -> Outcome:
    """Answer one job that flags and a config file describe; flags win."""
    from planner.intake.resolve import resolve

    request, notes = _request(flags, options.config)
    require(request, EXAMPLE)
    scenario = resolve(request, force=options.force)
    scenario = replace(scenario, warnings=(*scenario.warnings, *notes))
    choice = calibration_for(scenario, options.calibration)
    scenario, model = choice.noted_on(scenario), choice.model
    prediction = predict_with(scenario, model, explain=options.explain)
    coefficients = model.coefficients_for(scenario) if isinstance(model, Calibration) else model
    subject = Subject(scenario, prediction, None, options.explain, coefficients)
    if options.trace:
        from planner.cli.beside import answer_beside, run_trace

        return answer_beside(subject, run_trace(flags, config=options.config, force=options.force), options.output_format)
    return _report(subject, model, options)


def _request(flags: Mapping[str, object], config: str | None) -> tuple[ScenarioRequest, tuple[str, ...]]:
    """What flags and a config file say, and what was not taken over of the file."""
    request = from_flags(flags)
    if config is None:
        return request, ()
    from planner.intake.config_file import read_config_file, with_flags

    read = read_config_file(config)
    return with_flags(read, request), read.notes


def require(request: ScenarioRequest, example: str) -> None:
    """Check that everything without a default was said.

    Raises:
        UsageError: something was not; names the flags.
    """
    missing = [names[0] for names in _REQUIRED if all(request.get(name) is None for name in names)]
    if missing:
        flags = ", ".join(f"--{name}" for name in missing)
        raise UsageError(f"missing {flags}; for example: {example}")


def _report(subject: Subject, model: Coefficients | Calibration, options: Options) -> Outcome:
    from planner.report.subject import exit_code_of
    from planner.searching.levers import levers, stack_needs
    from planner.searching.run_length import at_example_length
    from planner.searching.unsaid import unsaid_settings

    scenario = subject.scenario
    subject = replace(
        subject,
        unsaid=unsaid_settings(scenario, subject.prediction, model),
        levers=levers(scenario, model),
        stacks=stack_needs(scenario, model),
        at_length=at_example_length(scenario, subject.prediction, model),
    )
    code = exit_code_of(subject.prediction)
    if options.output_format == "json":
        from planner.report.to_json import to_json

        return Outcome(to_json(subject), code)
    return Outcome(_text(subject, options), code)


def _text(subject: Subject, options: Options) -> str:
    """The first answer, or with --details and --explain all of it."""
    from planner.report.sections import build_sections
    from planner.report.short import short_sections, short_text

    whole = options.details or options.explain
    if options.output_format == "markdown":
        from planner.report.markdown import to_markdown

        return to_markdown(build_sections(subject) if whole else short_sections(subject))
    if whole:
        return human_text(build_sections(subject))
    from planner.report.human import make_console

    return short_text(subject, make_console(sys.stdout))
