"""``plan --model ... --gpu ...``: predict one job."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec

from planner.api.answering import How, answer_job, read_request
from planner.cli.outcome import Outcome, drawn, human_text
from planner.domain.recipes.job_line import picture_title
from planner.errors import NotModelledError, UnknownArchitectureError, UsageError, how_to_install
from planner.intake.fill_hardware import resolve_hardware
from planner.intake.given.ledger import Ledger
from planner.report.prediction.subject import Subject, exit_code_of


@dataclass(frozen=True, slots=True)
class PredictOptions:
    """How to read and answer, beside what the job is."""

    config: str | None = None
    output_format: str = "human"
    details: bool = False
    explain: bool = False
    force: bool = False
    calibration: str | None = None
    trace: bool = False
    plot: str | None = None

    @property
    def whole(self) -> bool:
        """Whether more than the first answer is asked for."""
        return self.details or self.explain


def predict(flags: Mapping[str, object], options: PredictOptions) -> Outcome:
    """Answer one job that flags and a config file describe; flags win."""
    if options.plot is not None:
        _check_plot(options.plot)
    timeline = options.plot is not None or (options.whole and options.output_format != "json")
    how = How(
        options.calibration,
        options.force,
        options.explain,
        advise=not options.trace,
        brief=not options.whole and options.output_format != "json",
        timeline=timeline,
    )
    try:
        subject = answer_job(flags, options.config, how)
    except UnknownArchitectureError as unknown:
        if not options.trace:
            return _bounded(flags, options, unknown)
        return _by_its_modules(flags, options, unknown)
    if options.plot is not None:
        _draw(subject, options.plot)
    if options.trace:
        from planner.cli.trace_process import answer_beside, run_trace

        return answer_beside(
            subject, run_trace(flags, config=options.config, force=options.force), options.output_format
        )
    return _report(subject, options)


def _bounded(
    flags: Mapping[str, object], options: PredictOptions, unknown: UnknownArchitectureError
) -> Outcome:
    """What is certain of its memory and a range for the rest, where its modules can be counted."""
    from planner.api.bounded import answer_bounded
    from planner.cli.trace_process import trace_words

    request, _ = read_request(flags, options.config)
    words = ["plan", *trace_words(flags, config=options.config, force=options.force), "--trace"]
    bounded = replace(answer_bounded(request, unknown, force=options.force), settle=shlex.join(words))
    if options.output_format == "json":
        from planner.report.bounds.document import bounds_json

        return Outcome(bounds_json(bounded), bounded.exit_code)
    from planner.report.bounds.sections import bounds_sections

    return drawn(bounds_sections(bounded), options.output_format, bounded.exit_code)


def _by_its_modules(
    flags: Mapping[str, object], options: PredictOptions, unknown: UnknownArchitectureError
) -> Outcome:
    """The dry run alone, on the card that was named."""
    from planner.cli.trace_process import answer_alone, run_trace

    request, _ = read_request(flags, options.config)
    limit = resolve_hardware(Ledger(request)).limit_bytes
    if limit is None:
        raise NotModelledError(
            "how much memory this GPU makes visible is not known; say it with --gpu-memory"
        )
    answer = run_trace(flags, config=options.config, force=options.force)
    return answer_alone(unknown, answer, limit, options.output_format)


def _check_plot(path: str) -> None:
    """Everything that can be wrong with a picture is found before the work begins."""
    from planner.files.writing import check_picture

    check_picture(path)
    if find_spec("matplotlib") is None:
        raise UsageError(f"matplotlib is not installed; {how_to_install('plots')}")


def _draw(subject: Subject, path: str) -> None:
    if subject.timeline is None:
        raise NotModelledError(
            "memory over the step is that of PyTorch's CUDA allocator; this is not a CUDA device"
        )
    from planner.allocator.documents.picture import draw_timeline

    draw_timeline(path, picture_title(subject.scenario), subject.timeline)


def _report(subject: Subject, options: PredictOptions) -> Outcome:
    code = exit_code_of(subject.prediction)
    if options.output_format == "json":
        from planner.report.prediction.to_json import to_json

        return Outcome(to_json(subject), code)
    return Outcome(_text(subject, options), code)


def _text(subject: Subject, options: PredictOptions) -> str:
    """The first answer, or how its numbers are made, or all of it."""
    from planner.report.prediction.sections import build_sections, explained_sections
    from planner.report.prediction.short import short_sections, short_text

    whole = options.whole
    long_sections = build_sections if options.details else explained_sections
    if options.output_format == "markdown":
        from planner.report.render.markdown import to_markdown

        return to_markdown(long_sections(subject) if whole else short_sections(subject))
    if whole:
        return human_text(long_sections(subject))
    from planner.report.render.human import make_console

    return short_text(subject, make_console(sys.stdout))
