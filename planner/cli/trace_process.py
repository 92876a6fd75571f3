"""``plan ... --trace``: the prediction beside a trace,
which runs as a process of its own and never sees the prediction.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError

from planner.allocator.documents.trace_document import TraceDocument
from planner.allocator.events import AllocEvent, read_jsonl
from planner.cli.outcome import Outcome, human_text, json_text
from planner.cli.under_limit import verdict_under
from planner.errors import (
    ExitCode,
    NotModelledError,
    PlannerError,
    UnknownArchitectureError,
    UsageError,
    how_to_install,
)
from planner.report.prediction.subject import Subject, exit_code_of
from planner.report.prediction.to_json import prediction_document
from planner.report.render.layout import Section
from planner.report.trace.alone import alone_sections
from planner.report.trace.comparison import beside_document, beside_sections, put_beside
from planner.report.trace.requests import difference_of

_MODULE = "measure"
_ERRORS: dict[int, type[PlannerError]] = {ExitCode.USAGE: UsageError, ExitCode.NOT_MODELLED: NotModelledError}


@dataclass(frozen=True, slots=True)
class TraceAnswer:
    """What ``measure trace`` said, and every allocation and free behind it."""

    document: TraceDocument
    events: list[AllocEvent]


def run_trace(flags: Mapping[str, object], *, config: str | None, force: bool) -> TraceAnswer:
    """What ``measure trace`` says about the same flags.

    Raises:
        UsageError: the measure extra is missing.
        NotModelledError: the scenario cannot be traced; says what to do.
        PlannerError: the trace failed.
    """
    if find_spec(_MODULE) is None:
        raise UsageError(f"the package 'measure' is not installed; {how_to_install('measure')}")
    command = [sys.executable, "-m", _MODULE, "trace", "--json", *trace_arguments(flags)]
    command += ["--config", config] if config is not None else []
    command += ["--force"] if force else []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        document = _document([*command, f"--events={path}"])
        return TraceAnswer(document, read_jsonl(path))


def _document(command: list[str]) -> TraceDocument:
    done = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False
    )
    if done.returncode != ExitCode.FITS:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1].removeprefix("measure: ") if lines else f"exit code {done.returncode}"
        raise _ERRORS.get(done.returncode, PlannerError)(reason)
    try:
        return TraceDocument.model_validate_json(done.stdout)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise PlannerError(
            f"what measure trace wrote is not the document that plan reads: {place}: {first['msg']}"
        ) from None


def answer_beside(subject: Subject, answer: TraceAnswer, output_format: str) -> Outcome:
    """Both answers row by row; the exit code is that of the prediction."""
    traced, prediction = answer.document, subject.prediction
    beside = put_beside(prediction, traced, difference_of(subject.scenario, answer.events))
    code = exit_code_of(prediction)
    if output_format == "json":
        whole = prediction_document(subject).model_dump(by_alias=True)
        return Outcome(json_text(beside_document(beside, whole, traced)), code)
    return _drawn(beside_sections(beside), output_format, code)


def answer_alone(
    unknown: UnknownArchitectureError, answer: TraceAnswer, limit_bytes: int, output_format: str
) -> Outcome:
    """What the modules of an architecture without a program allocate; the replay decides the exit code."""
    code = verdict_under(answer.events, limit_bytes)
    if output_format == "json":
        return Outcome(json_text(answer.document.model_dump(by_alias=True)), code)
    return _drawn(alone_sections(answer.document, unknown.model_type, limit_bytes, code), output_format, code)


def _drawn(sections: list[Section], output_format: str, code: ExitCode) -> Outcome:
    if output_format == "markdown":
        from planner.report.render.markdown import to_markdown

        return Outcome(to_markdown(sections), code)
    return Outcome(human_text(sections), code)


def trace_arguments(flags: Mapping[str, object]) -> list[str]:
    """The flags that were given, as they are typed."""
    arguments = []
    for name, value in flags.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            arguments.append(f"--{option}={value}")
    return arguments
