"""Sections of ``plan validate --cv source`` and ``plan calibrate``:
held-out errors beside in-sample ones, what was fitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from planner.calibration.fit.calibrate import Fitted
from planner.calibration.fit.personal import Personal
from planner.calibration.fit.screen import LeftOut
from planner.calibration.score.cross_validate import CrossValidation
from planner.calibration.score.metrics import ErrorSummary
from planner.calibration.score.validate import SourceScore
from planner.domain.uncertainty.calibration import Offset
from planner.domain.uncertainty.hierarchy import PRIOR_BY_NAME, moved
from planner.domain.uncertainty.interval import NOMINAL_COVERAGE
from planner.report.render.layout import Column, Grid, Note, Row, Section
from planner.report.render.numbers import percent, whole_percent
from planner.report.validation.sections import validation_sections
from planner.units import format_bytes

_QUANTITIES = (("memory", "GPU memory"), ("throughput", "Throughput"), ("host_memory", "Host RAM"))


def cross_validation_sections(result: CrossValidation, *, with_rows: bool) -> tuple[Section, ...]:
    """Errors side by side, what was fitted, what was left out, then the held-out validation in full."""
    sections = (
        *(_compared(result, name, title) for name, title in _QUANTITIES),
        *fit_sections(result.fitted),
        *validation_sections(result.held_out, with_rows=with_rows),
    )
    return tuple(section for section in sections if section.blocks)


def _compared(result: CrossValidation, name: str, title: str) -> Section:
    """MAPE of each source without a fit, in-sample and held out."""
    rows = []
    scores = [(*each.sources, each.overall) for each in (result.prior, result.in_sample, result.held_out)]
    for prior, fitted, held_out in zip(*scores, strict=True):
        summaries = [_summary(each, name) for each in (prior, fitted, held_out)]
        if summaries[0] is not None:
            cells = [percent(each.mape) if each else "" for each in summaries]
            rows.append(
                Row(
                    (prior.source, str(summaries[0].n), *cells),
                    "strong" if prior is scores[0][-1] else "plain",
                )
            )
    columns = (
        Column("source"),
        *(Column(each, "right") for each in ("rows", "no fit", "in-sample", "held out")),
    )
    return Section(f"{title}, mean absolute error", (Grid(columns, tuple(rows)),) if rows else ())


def _summary(score: SourceScore, name: str) -> ErrorSummary | None:
    summary: ErrorSummary | None = getattr(score, name)
    return summary


def fit_sections(fitted: Fitted, unread: Sequence[LeftOut] = ()) -> tuple[Section, ...]:
    """The free numbers with their spread, coverage of the intervals, numbers without enough readings,
    and what was left out.

    ``unread``: lines that never became records.
    """
    calibration = fitted.calibration
    notes = [
        Note(
            f"{len(calibration.offsets)} free numbers, {calibration.n_rows} "
            f"rows of {len(calibration.groups)} groups",
            "strong",
        )
    ]
    inside = f"of held-out readings inside the {whole_percent(NOMINAL_COVERAGE)} interval"
    notes += [
        Note(f"{of.replace('_', ' ')}: {whole_percent(share)} {inside}") for of, share in calibration.coverage
    ]
    fit = Section("What was fitted", (*notes, _table(calibration.offsets)))
    sections = (fit, _not_fitted(fitted.not_fitted), _left_out((*unread, *fitted.left_out)))
    return tuple(section for section in sections if section.blocks)


def personal_sections(own: Personal, unread: Sequence[LeftOut] = ()) -> tuple[Section, ...]:
    """What one machine's records moved, what none of them speaks of, and what was left out;
    ``unread`` as above.
    """
    calibration = own.calibration
    mine = tuple(
        offset
        for offset in calibration.offsets
        if offset.knob.level == "host" and offset.knob.key == calibration.name
    )
    head = Note(
        f"{own.free_numbers} numbers of '{calibration.name}', on top of the calibration that ships", "strong"
    )
    rest = Note(f"No reading depends on {', '.join(own.untouched)}: as they ship.", "dim")
    notes = (head, _machine_table(mine, own.shipped), *((rest,) if own.untouched else ()))
    sections = (Section("What was fitted", notes), _left_out((*unread, *own.left_out)))
    return tuple(section for section in sections if section.blocks)


def _machine_table(offsets: Sequence[Offset], shipped: Mapping[str, float]) -> Grid:
    """Each coefficient as it ships, and as it is there."""
    titles = ("as it ships", "here", "one sd")
    columns = (
        Column("coefficient", whole=True),
        *(Column(title, "right") for title in titles),
        Column("unit", wide_only=True),
    )
    rows = []
    for each in offsets:
        name, base = each.knob.coefficient, shipped.get(each.knob.coefficient, 0.0)
        here = [base + each.offset + step * each.spread for step in (-1, 0, 1)]
        rows.append(Row((name, *_cells(name, (base, here[1], here[0], here[2])))))
    return Grid(columns, tuple(rows))


def _table(offsets: Sequence[Offset]) -> Grid:
    titles = ("prior", "fitted", "one sd")
    columns = (
        Column("coefficient", whole=True),
        *(Column(title, "right") for title in titles),
        Column("unit", wide_only=True),
    )
    return Grid(columns, tuple(_offset_row(offset) for offset in offsets))


def _offset_row(offset: Offset) -> Row:
    low, value, high = (offset.offset + step * offset.spread for step in (-1, 0, 1))
    return Row((offset.knob.label, *_cells(offset.knob.coefficient, (0.0, value, low, high))))


def _cells(name: str, offsets: tuple[float, float, float, float]) -> tuple[str, str, str, str]:
    """Two values of a coefficient, a range and the unit, each value by its offset from the prior."""
    in_bytes = PRIOR_BY_NAME[name].unit == "bytes"
    values = (float(moved(name, each)) for each in offsets)
    first, second, low, high = (format_bytes(each) if in_bytes else f"{each:.3g}" for each in values)
    return first, second, f"{low} to {high}", "" if in_bytes else PRIOR_BY_NAME[name].unit


def _not_fitted(reasons: Mapping[str, str]) -> Section:
    """Grouped by why, because one reason holds for many coefficients."""
    rows = tuple(
        Row((why, ", ".join(name for name, reason in reasons.items() if reason == why)))
        for why in dict.fromkeys(reasons.values())
    )
    columns = (Column("why"), Column("coefficients that stay at their literature values"))
    return Section("Not fitted", (Grid(columns, rows),) if rows else ())


def _left_out(left_out: Sequence[LeftOut]) -> Section:
    if not left_out:
        return Section("Left out of the fit", ())
    counts = Counter(each.rule for each in left_out)
    summary = Note(", ".join(f"{rule} {count}" for rule, count in counts.most_common()))
    rows = tuple(Row((each.record_id, each.rule, each.reason)) for each in left_out)
    return Section(
        "Left out of the fit", (summary, Grid((Column("row"), Column("rule"), Column("why")), rows))
    )
