"""Sections of ``plan validate``: errors per source and overall, verdicts, what was left out,
and each row on request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.calibration.fit.screen import LeftOut
from planner.calibration.score.metrics import ErrorSummary
from planner.calibration.score.rows import Comparison, OomResult, RowScore
from planner.calibration.score.validate import MIN_GROUP_ROWS, SourceScore, Validation
from planner.predicting import PRIORS
from planner.records.parsing import MAX_TOLD
from planner.report.render.layout import Column, Grid, Note, Row, Section, Tone
from planner.report.render.numbers import percent
from planner.report.validation.phase_errors import phase_sections
from planner.report.validation.row_words import (
    amount,
    compared_label,
    quantity_label,
    recipe_label,
    signed_percent,
)

_ERROR_COLUMNS = (
    Column("source"),
    *(Column(title, "right") for title in ("rows", "MAPE", "median", "worst")),
    Column("worst row"),
    Column("compared"),
)
_OOM_TITLES = ("ran", "ran out", "false fit", "false OOM", "uncertain ran", "uncertain out", "no verdict")
_WIDE_TITLES = frozenset({"uncertain ran", "uncertain out", "no verdict"})
_VERDICT_WORDS: dict[OomResult, str] = {
    "right": "right",
    "false_fit": "FALSE FIT: said fits, ran out",
    "false_oom": "FALSE OOM: said does not fit, ran",
    "uncertain_ok": "uncertain, ran",
    "uncertain_oom": "uncertain, ran out",
    "no_verdict": "no verdict",
}
_LEGEND = (
    "x2: total of 2 GPUs.  full: the card was full, which caps the reading.  assumed: the meter is not "
    "named.  peak in: the phase that was compared."
)
_QUANTITIES: tuple[tuple[str, str, str], ...] = (
    ("memory", "GPU memory", "GiB"),
    ("throughput", "Throughput", ""),
    ("host_memory", "Host RAM", "GiB"),
    ("host_bound", "Host RAM against installed memory", "GiB"),
)


def validation_sections(validation: Validation, *, with_rows: bool) -> tuple[Section, ...]:
    """All sections in reading order, empty ones left out."""
    scores = (*validation.sources, validation.overall)
    sections = [
        _head(validation),
        _errors("GPU memory", scores, lambda score: score.memory),
        _errors("Throughput", scores, lambda score: score.throughput),
        _errors("Host RAM", scores, lambda score: score.host_memory),
        _order(scores),
        _bounds(scores),
        _verdicts(scores),
        *phase_sections(validation, with_rows=with_rows),
        _left_out("Not scored", validation.overall.not_modelled_rows, lambda row: row.not_modelled),
        _left_out("Time not predicted", validation.overall.not_timed_rows, lambda row: row.not_timed),
    ]
    if with_rows:
        sections += [_rows(validation.rows, *each) for each in _QUANTITIES]
        sections += [_verdict_rows(validation.rows)]
    return tuple(section for section in sections if section.blocks)


def _head(validation: Validation) -> Section:
    total, sources = validation.overall.n_rows, len(validation.sources)
    rows = f"{total} row{'s' if total != 1 else ''} from {sources} source{'s' if sources != 1 else ''}"
    plain = validation.is_held_out or validation.calibration == PRIORS.name
    coefficients = validation.calibration if plain else f"calibration {validation.calibration}"
    held_out = (
        "each source group is predicted by a fit without it"
        if validation.is_held_out
        else "the fit may have seen these rows (--cv source leaves each source out)"
    )
    if validation.cpu_rows:
        rows += f", and {len(validation.cpu_rows)} without a GPU, apart"
    notes = [
        *_answer(validation.sources[0] if sources == 1 else validation.overall),
        Note(f"{rows}; {coefficients}; {held_out}"),
        Note(
            "Errors are (predicted - measured) / measured of the number as printed: + is too much memory, "
            "too long a time or too high a rate.  Overall is the plain mean over source groups with at "
            f"least {MIN_GROUP_ROWS} compared rows.",
            "dim",
        ),
    ]
    if validation.overall.n_censored:
        full = (
            f"{validation.overall.n_censored} rows filled the card, so their reading is capped by it; "
            "they are in the errors."
        )
        notes.append(Note(full, "dim"))
    if random := sum(row.has_random_weights for row in validation.rows):
        told = f"Host RAM of {random} rows is not compared: their weights were random, made on the GPU."
        notes.append(Note(told, "dim"))
    notes += [Note(f"Left out: {place}", "warn") for place in validation.unread[:MAX_TOLD]]
    if (more := len(validation.unread) - MAX_TOLD) > 0:
        notes.append(Note(f"Left out too: {more} more lines; --json names them all", "warn"))
    return Section("", tuple(notes))


def _answer(overall: SourceScore) -> tuple[Note, ...]:
    """How far off, in a line."""
    judged = overall.oom.n_ok + overall.oom.n_oom
    parts = [
        f"{name} is off by {percent(errors.mape)} on average"
        for name, errors in (("GPU memory", overall.memory), ("throughput", overall.throughput))
        if errors is not None
    ]
    parts += (
        [f"wrong verdicts: {overall.oom.false_fit + overall.oom.false_oom} of {judged}"] if judged else []
    )
    text = "; ".join(parts)
    return (Note(f"{text[:1].upper()}{text[1:]}", "strong"),) if parts else ()


def _errors(
    title: str, scores: Sequence[SourceScore], pick: Callable[[SourceScore], ErrorSummary | None]
) -> Section:
    rows = [(score.source, summary) for score in scores if (summary := pick(score)) is not None]
    if not rows:
        return Section(title, ())
    *sources, last = [_error_row(source, summary) for source, summary in rows]
    tone: Tone = "strong" if pick(scores[-1]) is not None else "plain"
    return Section(title, (Grid(_ERROR_COLUMNS, (*sources, Row(last.cells, tone))),))


def _error_row(source: str, summary: ErrorSummary) -> Row:
    compared = ", ".join(f"{quantity_label(name)} {count}" for name, count in summary.quantities)
    shares = (percent(summary.mape), signed_percent(summary.median_signed), percent(summary.max_abs))
    return Row((source, str(summary.n), *shares, summary.worst_row, compared))


def _order(scores: Sequence[SourceScore]) -> Section:
    """Whether a planner would pick the right one of two configurations:
    the share of pairs in the measured order.
    """
    rows = []
    for score in scores:
        found = [score.memory_ranks, score.throughput_ranks]
        if any(found):
            cells = [
                cell
                for each in found
                for cell in ((f"{each.n_pairs:,}", percent(each.share)) if each else ("", ""))
            ]
            rows.append(Row((score.source, *cells), "strong" if score is scores[-1] else "plain"))
    titles = ("pairs by memory", "in order", "pairs by speed", "in order")
    note = Note("Pairs of one document whose measurements lie more than 10 % apart.", "dim")
    grid = Grid((Column("source"), *(Column(each, "right") for each in titles)), tuple(rows))
    return Section("Order of configurations", (grid, note) if rows else ())


def _bounds(scores: Sequence[SourceScore]) -> Section:
    notes = tuple(
        Note(
            f"{score.source}: {bound.ok} of {bound.n} predictions are within the installed memory; largest "
            f"excess {percent(bound.max_excess)} ({bound.worst_row})"
        )
        for score in scores[:-1]
        if (bound := score.host_bound) is not None
    )
    return Section("Host RAM against installed memory, an upper bound", notes)


def _verdicts(scores: Sequence[SourceScore]) -> Section:
    if not scores[-1].n_rows:
        return Section("", ())
    columns = (
        Column("source"),
        *(Column(title, "right", wide_only=title in _WIDE_TITLES) for title in _OOM_TITLES),
    )
    rows = []
    for score in scores:
        oom = score.oom
        counts = (
            oom.n_ok,
            oom.n_oom,
            oom.false_fit,
            oom.false_oom,
            oom.uncertain_ok,
            oom.uncertain_oom,
            oom.no_verdict,
        )
        rows.append(Row((score.source, *map(str, counts)), "strong" if score is scores[-1] else "plain"))
    return Section("Verdict on GPU memory", (Grid(columns, tuple(rows)),))


def doubtful_section(rows: Sequence[LeftOut]) -> Section:
    """Rows with something wrong, which are scored all the same: the rule and the reason."""
    grid = Grid(
        (Column("row"), Column("rule"), Column("why")),
        tuple(Row((each.record_id, each.rule, each.reason)) for each in rows),
    )
    return Section("Doubtful rows, scored all the same", (grid,) if rows else ())


def _left_out(title: str, rows: Sequence[RowScore], reason: Callable[[RowScore], str]) -> Section:
    if not rows:
        return Section(title, ())
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(reason(row), []).append(row.record.id)
    lines = tuple(
        Row((ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1:,} more", why))
        for why, ids in found.items()
    )
    return Section(title, (Grid((Column("row"), Column("why")), lines),))


def _rows(rows: Sequence[RowScore], name: str, title: str, unit: str) -> Section:
    """One line for each row that has this comparison."""
    is_memory = name == "memory"
    found: list[Row] = []
    for row in rows:
        comparison: Comparison | None = getattr(row, name)
        if comparison is None:
            continue
        quantity = comparison.quantity
        measured, predicted = amount(quantity, comparison.measured), amount(quantity, comparison.predicted)
        job = f"{row.record.model} {recipe_label(row)}"
        numbers = (measured, predicted, signed_percent(comparison.error))
        phase = (_phase(row),) if is_memory else ()
        found.append(Row((row.record.id, job, compared_label(row, comparison), *numbers, *phase)))
    if not found:
        return Section(title, ())
    columns = (
        Column("row"),
        Column("job"),
        Column("compared"),
        *(Column(text, "right") for text in ("measured", "predicted", "error")),
        *((Column("peak in"),) if is_memory else ()),
    )
    legend = (Note(_LEGEND, "dim"),) if is_memory else ()
    return Section(f"Rows: {title}{f' in {unit}' if unit else ''}", (Grid(columns, tuple(found)), *legend))


def _phase(row: RowScore) -> str:
    """The phase whose peak was compared: the one the run ended in, or the limiting one."""
    if row.record.phase_reached is not None:
        return row.record.phase_reached
    return row.prediction.memory.limiting_phase if row.prediction else ""


def _verdict_rows(rows: Sequence[RowScore]) -> Section:
    """Rows that ran out, and rows whose verdict was not right."""
    found = [
        Row(
            (
                row.record.id,
                f"{row.record.model} {recipe_label(row)}",
                row.record.outcome,
                _VERDICT_WORDS[row.oom],
            )
        )
        for row in rows
        if row.oom is not None and (row.oom != "right" or row.record.outcome == "oom")
    ]
    columns = (Column("row"), Column("job"), Column("outcome"), Column("verdict"))
    return Section("Rows: out of memory, or judged wrongly", (Grid(columns, tuple(found)),) if found else ())
