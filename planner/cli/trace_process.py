"""``plan ... --trace``: the prediction beside a trace,
which runs as a process of its own and never sees the prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from planner.allocator.documents.summary import room_on, summarize
from planner.allocator.documents.trace_document import TraceDocument
from planner.allocator.events import AllocEvent, read_jsonl
from planner.api.measure_process import run_measure
from planner.cli.outcome import Outcome, drawn, json_text
from planner.domain.stack import Stack
from planner.errors import UnknownArchitectureError
from planner.report.prediction.subject import Subject, exit_code_of
from planner.report.prediction.to_json import prediction_document
from planner.report.trace.alone import alone_sections
from planner.report.trace.comparison import OtherVersion, beside_sections, put_beside
from planner.report.trace.requests import difference_of
from planner.report.trace.updates import updates_of

_RUN = ("torch", "transformers", "peft")
"""Packages whose own code makes the traced step."""


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
    words = ["trace", "--json", *trace_words(flags, config=config, force=force)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        document = run_measure(TraceDocument, [*words, f"--events={path}"])
        return TraceAnswer(document, read_jsonl(path))


def answer_beside(subject: Subject, answer: TraceAnswer, output_format: str) -> Outcome:
    """Both answers row by row; the exit code is that of the prediction."""
    traced, prediction = answer.document, subject.prediction
    difference = difference_of(subject.scenario, answer.events)
    versions, updates = other_versions(subject.scenario.stack), updates_of(subject.scenario, answer.events)
    beside = put_beside(prediction, traced, difference, versions, updates)
    code = exit_code_of(prediction)
    if output_format == "json":
        from planner.report.trace.document import beside_json

        return Outcome(beside_json(beside, prediction_document(subject), traced), code)
    return drawn(beside_sections(beside), output_format, code)


def other_versions(stack: Stack) -> tuple[OtherVersion, ...]:
    """Packages that the trace runs in another version than that of ``stack``: it has what is installed."""
    found = []
    for package, planned in stack.versions:
        if package not in _RUN:
            continue
        try:
            installed = version(package).partition("+")[0]
        except PackageNotFoundError:
            continue
        if installed != planned:
            found.append(OtherVersion(package, planned, installed))
    return tuple(found)


def answer_alone(
    unknown: UnknownArchitectureError, answer: TraceAnswer, limit_bytes: int, output_format: str
) -> Outcome:
    """What the modules of an architecture without a program allocate; the replay decides the exit code."""
    code = summarize(answer.events, room_on(limit_bytes)).exit_code
    if output_format == "json":
        return Outcome(json_text(answer.document.model_dump(by_alias=True)), code)
    return drawn(alone_sections(answer.document, unknown.model_type, limit_bytes, code), output_format, code)


def trace_words(flags: Mapping[str, object], *, config: str | None, force: bool) -> list[str]:
    """The same job as it is typed, with the config file below the flags."""
    words = trace_arguments(flags)
    words += ["--config", config] if config is not None else []
    return [*words, "--force"] if force else words


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
