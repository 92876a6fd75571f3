"""``plan check`` for people: a report for one config, a line for each of several,
then what was read of them with care.
"""

from __future__ import annotations

import os.path
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import PurePath
from shlex import quote

from planner.domain.recipes.job_line import short_job_line
from planner.errors import ExitCode
from planner.report.bounds.sections import bounds_sections
from planner.report.check.checked import AssumedSetting, Checked, Fix, worst_exit_code
from planner.report.check.traced import Traced
from planner.report.prediction.sections import VERDICTS, data_notes, step_note
from planner.report.prediction.subject import Subject, rests_on_unknown_host
from planner.report.prediction.verdict import uses_text, verdict_note
from planner.report.render.layout import Block, Column, Commands, Grid, Note, Row, Section, Tone
from planner.report.render.numbers import chance_text, duration, gib

__all__ = ["Checked", "Fix", "check_sections", "worst_exit_code"]

_FAILURES = {
    ExitCode.UNCERTAIN: "UNCERTAIN",
    ExitCode.FITS: "FITS, BY BOUNDS",
    ExitCode.GPU_MEMORY_SHORT: "DOES NOT FIT, BY BOUNDS",
    ExitCode.INTERNAL_ERROR: "INTERNAL ERROR",
    ExitCode.USAGE: "CANNOT BE USED",
    ExitCode.NOT_MODELLED: "NOT MODELLED",
}
_DRY_RUNS: dict[ExitCode, tuple[str, Tone]] = {
    ExitCode.FITS: ("FITS", "good"),
    ExitCode.UNCERTAIN: ("UNCERTAIN, the CUDA context decides", "warn"),
    ExitCode.GPU_MEMORY_SHORT: ("DOES NOT FIT", "bad"),
}
_COLUMNS = (
    Column("verdict", whole=True),
    Column("needs", "right"),
    Column("of GiB", "right"),
    Column("chance", "right"),
    Column("step", "right", wide_only=True),
    Column("config"),
)
_MAX_LISTED = 20
BRIEF_ABOVE = 10
"""Above so many configs only what needs attention is said of each, and levers are not looked for."""


def check_sections(checked: Sequence[Checked], allowed: Collection[ExitCode] = ()) -> tuple[Section, ...]:
    """The report of one config, or the table of several;
    those with an exit code that is ``allowed`` may be launched.
    """
    told = _told(checked)
    if len(told) > 1:
        sections = _several(told, checked, allowed)
    elif told[0].subject is None:
        sections = _failed(told[0])
    else:
        sections = _one(told[0], told[0].subject, allowed)
    sections = (
        *sections,
        *(Section("", tuple(_dry_run(each, each.traced))) for each in checked if each.traced is not None),
    )
    return tuple(section for section in sections if section.blocks)


def _told(checked: Sequence[Checked]) -> list[Checked]:
    """Commands of a script that ask for one job, as those of a loop over learning rates do, as the first of
    them, which counts the others.
    """
    alike: dict[tuple[str, ...], list[Checked]] = {}
    for number, each in enumerate(checked):
        script, mark, _ = each.config.rpartition("#")
        is_same = bool(mark and each.flags) and each.subject is not None and each.traced is None
        key = (script, each.accelerate, each.flags) if is_same else (str(number),)
        alike.setdefault(key, []).append(each)
    return [
        replace(first, config=f"{first.config} and {len(others)} alike") if others else first
        for first, *others in alike.values()
    ]


def _dry_run(each: Checked, traced: Traced) -> Iterator[Block]:
    """The peak of the tool's own run, or why there is none, with what had to be assumed."""
    name = _base(each.config)
    if traced.reserved_bytes is None or traced.allocated_bytes is None:
        yield Note(f"Dry run of {name}: none, {traced.failure}", "warn")
        return
    verdict, tone = _DRY_RUNS[traced.code]
    of = "" if traced.limit_bytes is None else f" of {gib(traced.limit_bytes)} GiB"
    peaks = (
        f"reserved {gib(traced.reserved_bytes)}{of}, allocated {gib(traced.allocated_bytes)}, without "
        "the CUDA context"
    )
    yield Note(f"Dry run of {name} by its own tool: {verdict}; {peaks}.", tone)
    for line in traced.assumed[:_MAX_LISTED]:
        yield Note(f"    {line}", "dim")


def _failed(each: Checked) -> tuple[Section, ...]:
    if each.bounds is not None:
        return bounds_sections(each.bounds)
    return (
        Section("", (Note(f"{_FAILURES[each.failure_code]}: {_about(each.name, each.failure)}", "bad"),)),
    )


def _one(each: Checked, subject: Subject, allowed: Collection[ExitCode]) -> tuple[Section, ...]:
    prediction = subject.prediction
    reason = () if prediction.verdict in ("fits", "uncertain") else (Note(f"{_capital(prediction.reason)}."),)
    head = (
        verdict_note(subject),
        Note(uses_text(subject)),
        *reason,
        Note(f"{_base(each.config)}, read as {each.tool}: {short_job_line(subject.scenario)}", "dim"),
        step_note(prediction),
        *data_notes(subject),
    )
    return (
        Section("", head),
        Section("", tuple(_fixes(each))),
        Section("", tuple(_details(each, subject, _keys_of(each), defaults=True))),
        Section("", tuple(_end(each, subject, allowed))),
    )


def _end(each: Checked, subject: Subject, allowed: Collection[ExitCode]) -> Iterator[Block]:
    """How to ask for more, then the line for a launch script,
    or else what to do and the verdict once more.
    """
    if each.details:
        yield Note("More:", "dim")
        yield Commands((each.details,))
    elif not each.launch_file:
        yield Note(f"More: plan --config {quote(each.config)} --details, with the same flags", "dim")
    if each.written is not None:
        yield from _written(each)
    elif each.exit_code in (ExitCode.FITS, *allowed):
        yield Commands((_launch_line(each),))
    else:
        if each.remedy:
            yield Note(f"Write {'these changes' if len(each.remedy) > 1 else 'it'}:", "dim")
            yield Commands((f"{each.command} --write {_suggested(each.config)}",))
        yield verdict_note(subject)


def _written(each: Checked) -> Iterator[Block]:
    written = each.written
    if written is None:
        return
    changes = ", ".join(fix.lever.description for fix in each.remedy) or "as it was"
    over = PurePath(written.after.config) == PurePath(each.config)
    done = "Overwritten" if over else "Written"
    yield Note(f"{done}: {' and '.join(written.files)} ({changes}). Read again:", "strong")
    after = written.after
    if after.subject is None:
        yield Note(f"{_FAILURES[after.failure_code]}: {after.failure}", "bad")
        return
    yield verdict_note(after.subject)
    if after.exit_code == ExitCode.FITS:
        yield Commands((_launch_line(after),))


def _launch_line(each: Checked) -> str:
    return f"{each.command} && {each.launch}" if each.launch else each.command


def _fixes(each: Checked) -> Iterator[Block]:
    """The first levers, each with what it saves and costs, and the lines that ask for it."""
    if each.fixes is None or each.written is not None:
        return
    remedy = each.remedy if len(each.remedy) > 1 else ()
    if not each.fixes and not remedy:
        yield Note("No change of this job that is modelled saves memory.", "warn")
        return
    title = (
        "What would make it fit"
        if any(fix.fits for fix in each.fixes)
        else "Nothing that was tried alone makes it fit"
    )
    yield Note(f"{title}, in the files' own keys:", "strong")
    # As in plan's own answer: beside what is enough, what is not enough only distracts.
    for fix in [fix for fix in each.fixes if fix.fits] or each.fixes:
        yield from _fix(each, fix)
    if remedy:
        yield Note("All of these together make it fit:", "strong")
        for fix in remedy:
            yield from _fix(each, fix, together=True)


def _fix(each: Checked, fix: Fix, *, together: bool = False) -> Iterator[Block]:
    saves = f"saves {gib(fix.saves_bytes)} GiB, " if fix.saves_bytes else ""
    then = "" if together else f"; then {_then(fix)}"
    yield Note(
        f"{_capital(fix.lever.description)}: {saves}{fix.lever.cost_text}{then}",
        "good" if fix.fits else "plain",
    )
    yield Commands(tuple(f"    {line}" for line in fix_lines(each.config, fix)))


def _then(fix: Fix) -> str:
    """The verdict with the change."""
    if fix.after is None:
        return VERDICTS[fix.verdict][0].lower()
    prediction = fix.after.prediction
    if fix.fits and rests_on_unknown_host(fix.after.scenario, prediction):
        return f"fits if a node has {gib(prediction.host.required_per_node_bytes)} GiB of RAM"
    sure = (
        "" if prediction.fits_probability is None else f", chance {chance_text(prediction.fits_probability)}"
    )
    return f"{VERDICTS[fix.verdict][0].lower()}{sure if prediction.verdict != 'does_not_fit' else ''}"


def fix_lines(config: str, fix: Fix) -> tuple[str, ...]:
    """The lines of a change as the files have them;
    those of another file than the config stand below its name.
    """
    if not fix.edits:
        # Nobody looks for a card in a file.
        no_key = "" if fix.lever.hardware_text else "   (no key of these files)"
        return (f"{fix.lever.flags_text}{no_key}",)
    lines: list[str] = []
    for file, of_file in groupby(fix.edits, key=lambda edit: edit.file):
        edits = tuple(of_file)
        if edits[0].is_of_launch_line:
            lines.append(" ".join(("accelerate launch", *(each for edit in edits for each in edit.options))))
            continue
        if str(file) != config:
            lines.append(f"in {file}:")
        lines += [line for edit in edits for line in edit.lines]
    return tuple(lines)


def _several(
    told: Sequence[Checked], checked: Sequence[Checked], allowed: Collection[ExitCode]
) -> tuple[Section, ...]:
    folder = _common_folder(checked)
    above = (Note(f"In {folder}:", "dim"),) if folder else ()
    grid = Grid(_COLUMNS, tuple(_row(each, folder) for each in told))
    brief = len(told) > BRIEF_ABOVE
    read = [_read(each, each.subject, folder, brief=brief) for each in told if each.subject is not None]
    return (
        Section("", (*above, grid)),
        Section("", tuple(_failure_note(each, folder) for each in told if each.subject is None)),
        *read,
        Section("", tuple(_shared(checked))),
        Section("", (_count(checked, allowed),)),
    )


def _failure_note(each: Checked, folder: str) -> Note:
    return Note(
        _about(_short(each.name, folder), each.failure.replace(f"{folder}/", "") if folder else each.failure),
        "bad",
    )


def _row(each: Checked, folder: str) -> Row:
    name = _short(each.name, folder)
    if each.subject is None:
        return Row((_FAILURES[each.failure_code], "", "", "", "", name), "bad")
    prediction = each.subject.prediction
    word, tone = VERDICTS[prediction.verdict]
    if prediction.verdict == "fits" and rests_on_unknown_host(each.subject.scenario, prediction):
        word, tone = "FITS, RAM UNKNOWN", "warn"
    limit, sure = prediction.memory.limit_bytes, prediction.fits_probability
    cells = (
        word,
        gib(prediction.memory.must_have_bytes),
        "unknown" if limit is None else gib(limit),
        "unknown" if sure is None else chance_text(sure),
        duration(prediction.time.step_s) if prediction.time else "unknown",
        name,
    )
    return Row(cells, _plain_when_good(tone))


def _plain_when_good(tone: Tone) -> Tone:
    return "plain" if tone == "good" else tone


def _read(each: Checked, subject: Subject, folder: str, *, brief: bool) -> Section:
    """What was not taken over of one of several files, and its first way to fit;
    nothing where there is nothing to say.
    """
    blocks = tuple(_details(each, subject, _keys_of(each), defaults=False))
    if not brief and each.remedy:
        changes = "; ".join(line.strip() for fix in each.remedy for line in fix_lines(each.config, fix))
        blocks += (Note(f"With {changes}: {_then(each.remedy[-1])}", "good"),)
    if not blocks:
        return Section("", ())
    about = Note(
        f"{_short(each.name, folder)}, read as {each.tool}: {short_job_line(subject.scenario)}", "strong"
    )
    return Section("", (about, *blocks))


def _shared(checked: Sequence[Checked]) -> Iterator[Note]:
    """What was assumed of some of several files, once for all of them."""
    found: dict[str, tuple[AssumedSetting, int]] = {}
    for each in checked:
        for entry in each.assumed:
            found[entry.setting] = (entry, found.get(entry.setting, (entry, 0))[1] + 1)
    for entry, count in found.values():
        text = (
            "every sample is counted with its full length"
            if entry.setting == "tokens_per_sample"
            else entry.text
        )
        yield Note(f"Assumed for {count} of {len(checked)}: {text}; {_ways(entry)} says otherwise.", "warn")


def _count(checked: Sequence[Checked], allowed: Collection[ExitCode]) -> Note:
    """``Of 5: fits: 3, does not fit: 1, cannot be used: 1; exit code 2``."""
    words = Counter(
        _FAILURES[each.failure_code].lower()
        if each.subject is None
        else VERDICTS[each.subject.prediction.verdict][0].lower()
        for each in checked
    )
    code = worst_exit_code(checked, allowed)
    counts = ", ".join(f"{word}: {count}" for word, count in words.most_common())
    return Note(
        f"Of {len(checked)}: {counts}; exit code {int(code)}", "plain" if code == ExitCode.FITS else "bad"
    )


def _details(each: Checked, subject: Subject, names: dict[str, str], *, defaults: bool) -> Iterator[Note]:
    """What was assumed, what is unknown or counted otherwise, warnings, and what the tool's defaults gave."""
    scenario = subject.scenario
    if defaults:
        for entry in each.assumed:
            yield Note(f"Assumed: {entry.text}; {_ways(entry)} says otherwise.", "warn")
    unknown = [names.get(origin, origin) for origin in each.ignored]
    if unknown:
        more = (
            f" and {len(unknown) - _MAX_LISTED:,} more (--json lists all)"
            if len(unknown) > _MAX_LISTED
            else ""
        )
        plural = "s" if len(unknown) > 1 else ""
        yield Note(f"Unknown key{plural}, ignored: {', '.join(unknown[:_MAX_LISTED])}{more}", "warn")
    texts: dict[str, list[str]] = {}
    for origin, text in each.remarks:
        texts.setdefault(text, []).append(names.get(origin, origin))
    for text, keys in texts.items():
        yield Note(f"{', '.join(keys)}: {text}", "warn")
    for text in subject.warnings:
        yield Note(f"Warning: {text}", "warn")
    if defaults:
        taken: dict[str, list[str]] = {}
        told = {entry.setting for entry in each.assumed}
        for assumption in scenario.assumptions:
            if assumption.is_tool_default and assumption.name not in told:
                name = "" if assumption.name == "switches" else f"{assumption.name}="
                taken.setdefault(assumption.origin, []).append(f"{name}{assumption.value}")
        yield from (
            Note(f"Not in the file, {origin}: {', '.join(settings)}", "dim")
            for origin, settings in taken.items()
        )


def _ways(entry: AssumedSetting) -> str:
    return " or ".join(entry.flags)


def _keys_of(each: Checked) -> dict[str, str]:
    """Places without the name of the config itself, and other files without their folder."""
    origins = (*each.ignored, *(origin for origin, _ in each.remarks))
    folder = os.path.dirname(each.config)  # noqa: PTH120 - text of a message, not a path to open
    return {
        origin: origin.removeprefix(f"{each.config}:").removeprefix(f"{folder}/" if folder else "")
        for origin in origins
    }


def _about(config: str, text: str) -> str:
    """``text`` with the name of its file, unless it names it."""
    return text if config in text else f"{config}: {text}"


def _common_folder(checked: Sequence[Checked]) -> str:
    """The folder of all configs, which need not stand in each line."""
    folders = {os.path.dirname(each.config) for each in checked}  # noqa: PTH120 - as above
    return folders.pop() if len(folders) == 1 else ""


def _short(name: str, folder: str) -> str:
    return name.removeprefix(f"{folder}/") if folder else name


def _base(config: str) -> str:
    return os.path.basename(config)  # noqa: PTH119 - as above


def _suggested(config: str) -> str:
    """A name for the changed file: ``train.yaml`` -> ``train-fits.yaml``."""
    stem, suffix = os.path.splitext(config)  # noqa: PTH122 - as above
    return f"{stem}-fits{suffix}"


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
