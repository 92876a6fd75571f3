"""``plan --model ... --gpu ...``: predict one job."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from planner.api.job import How, answer_job
from planner.cli.outcome import Outcome, human_text
from planner.report.prediction.subject import Subject, exit_code_of


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
    how = How(options.calibration, options.force, options.explain, advise=not options.trace)
    subject = answer_job(flags, options.config, how)
    if options.trace:
        from planner.cli.beside import answer_beside, run_trace

        return answer_beside(subject, run_trace(flags, config=options.config, force=options.force), options.output_format)
    return _report(subject, options)


def _report(subject: Subject, options: Options) -> Outcome:
    code = exit_code_of(subject.prediction)
    if options.output_format == "json":
        from planner.report.prediction.to_json import to_json

        return Outcome(to_json(subject), code)
    return Outcome(_text(subject, options), code)


def _text(subject: Subject, options: Options) -> str:
    """The first answer, or with --details and --explain all of it."""
    from planner.report.prediction.sections import build_sections
    from planner.report.prediction.short import short_sections, short_text

    whole = options.details or options.explain
    if options.output_format == "markdown":
        from planner.report.render.markdown import to_markdown

        return to_markdown(build_sections(subject) if whole else short_sections(subject))
    if whole:
        return human_text(build_sections(subject))
    from planner.report.render.human import make_console

    return short_text(subject, make_console(sys.stdout))
