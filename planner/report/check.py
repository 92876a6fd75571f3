"""``plan check``: one line for each config, then what was read of it with care."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.domain.calibration import lengths_are_unknown
from planner.errors import ExitCode
from planner.report.layout import Column, Grid, Note, Row, Section, Tone
from planner.report.numbers import duration, gib, whole_percent
from planner.report.sections import VERDICTS, job_line
from planner.report.subject import Subject, exit_code_of, rests_on_unknown_host, shown_peak_bytes

# Several jobs: the first of these that any of them has is the code of all.
_WORST_FIRST = (
    ExitCode.INTERNAL_ERROR,
    ExitCode.USAGE,
    ExitCode.NOT_MODELLED,
    ExitCode.GPU_MEMORY_SHORT,
    ExitCode.HOST_MEMORY_SHORT,
    ExitCode.UNCERTAIN,
    ExitCode.FITS,
)
_FAILURES = {
    ExitCode.INTERNAL_ERROR: "INTERNAL ERROR",
    ExitCode.USAGE: "CANNOT BE USED",
    ExitCode.NOT_MODELLED: "NOT MODELLED",
}
_COLUMNS = (
    Column("verdict", whole=True),
    Column("peak GiB", "right"),
    Column("of GiB", "right"),
    Column("", "right"),
    Column("P(fits)", "right"),
    Column("step", "right", wide_only=True),
    Column("config"),
)
_LENGTHS = "How long samples are is not said, so the interval is wide: --tokens-per-sample narrows it."
_MAX_LISTED = 20
# Above so many configs only what needs attention is said of each.
_BRIEF_ABOVE = 10
_HINT = "The whole report of one: plan --config FILE, with the same flags."


@dataclass(frozen=True, slots=True)
class Checked:
    """One config and its answer: ``subject``, or else ``failure`` with its exit code.

    ``tool``: what the file is for (empty where that was not told).  ``flags``: the same job in words of ``plan``.
    ``remarks``: place and text of each key that is not counted as it stands.  ``ignored``: unknown keys, as ``file:key``.
    """

    config: str
    tool: str = ""
    subject: Subject | None = None
    failure: str = ""
    failure_code: ExitCode = ExitCode.FITS
    flags: str = ""
    remarks: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """What this config alone would end with."""
        return self.failure_code if self.subject is None else exit_code_of(self.subject.prediction)


def worst_exit_code(checked: Sequence[Checked]) -> ExitCode:
    """The exit code of several jobs: the worst of theirs."""
    return min((each.exit_code for each in checked), key=_WORST_FIRST.index)


def check_sections(checked: Sequence[Checked]) -> tuple[Section, ...]:
    """The table of verdicts, then, where there is something to say, what was read of each file."""
    grid = Section("", (Grid(_COLUMNS, tuple(map(_row, checked))), *_failures(checked)))
    read = [section for each in checked if (section := _read(each, brief=len(checked) > _BRIEF_ABOVE)).blocks]
    answered = any(each.subject for each in checked)
    return (grid, *read, *((Section("", (Note(_HINT, "dim"),)),) if answered else ()))


def _row(each: Checked) -> Row:
    if each.subject is None:
        return Row((_FAILURES[each.failure_code], "", "", "", "", "", each.config), "bad")
    prediction = each.subject.prediction
    word, tone = VERDICTS[prediction.verdict]
    if prediction.verdict == "fits" and rests_on_unknown_host(each.subject.scenario, prediction):
        word, tone = "FITS, RAM UNKNOWN", "warn"
    limit, peak_bytes = prediction.memory.limit_bytes, shown_peak_bytes(prediction)
    sure = prediction.fits_probability
    cells = (
        word,
        gib(peak_bytes),
        "unknown" if limit is None else gib(limit),
        whole_percent(float(peak_bytes) / limit) if limit else "",
        "unknown" if sure is None else whole_percent(sure),
        duration(prediction.time.step_s) if prediction.time else "unknown",
        each.config,
    )
    return Row(cells, _plain_when_good(tone))


def _plain_when_good(tone: Tone) -> Tone:
    return "plain" if tone == "good" else tone


def _failures(checked: Sequence[Checked]) -> tuple[Note, ...]:
    return tuple(Note(_about(each.config, each.failure), "bad") for each in checked if each.subject is None)


def _about(config: str, text: str) -> str:
    """``text`` with the name of its file, unless it begins with it."""
    return text if text.startswith(config) else f"{config}: {text}"


def _read(each: Checked, *, brief: bool) -> Section:
    """What was not taken over as it stands, warnings, and, unless ``brief``, what was taken from the tool's defaults."""
    if each.subject is None:
        return Section("", ())
    scenario = each.subject.scenario
    notes = [Note(f"unknown key, ignored: {_key(each, origin)}", "warn") for origin in each.ignored[:_MAX_LISTED]]
    if len(each.ignored) > _MAX_LISTED:
        notes.append(Note(f"{len(each.ignored) - _MAX_LISTED:,} more unknown keys; --json lists all", "warn"))
    notes += [Note(f"{_key(each, origin)}: {text}", "warn") for origin, text in each.remarks]
    taken: dict[str, list[str]] = {}
    for entry in scenario.assumptions:
        if entry.origin.startswith("default of "):
            taken.setdefault(entry.origin, []).append(f"{entry.name}={entry.value}")
    taken = {} if brief else taken
    notes += [Note(f"not in the file, {origin}: {', '.join(settings)}", "dim") for origin, settings in taken.items()]
    if not brief and each.subject.prediction.uncertainty is not None and lengths_are_unknown(scenario):
        notes.append(Note(_LENGTHS))
    warnings = dict.fromkeys((*scenario.warnings, *each.subject.prediction.warnings))
    notes += [Note(f"Warning: {text}", "warn") for text in warnings]
    if not notes:
        return Section("", ())
    return Section(f"{each.config}, read as {each.tool}", (Note(job_line(scenario)), *notes))


def _key(each: Checked, origin: str) -> str:
    """A place without the name of the config itself, which stands above it."""
    return origin.removeprefix(f"{each.config}:")
