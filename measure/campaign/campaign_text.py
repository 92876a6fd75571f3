"""What a campaign will do, and what came of it, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from measure.campaign.progress import HEADER, result_row
from measure.campaign.runner import Agenda, Tally
from planner.units import format_seconds


def agenda_text(title: str, agenda: Agenda) -> str:
    """The cases left in their order, and those that cannot run here with the reason."""
    lines = [
        (
            f"{title}: {len(agenda.queue)} to run, {agenda.recorded} recorded already, "
            f"{len(agenda.refused)} not possible here"
        )
    ]
    lines += [f"{number:4d}  {queued.label}" for number, queued in enumerate(agenda.queue, 1)]
    return "\n".join([*lines, *_refused_lines(agenda)]) + "\n"


def _refused_lines(agenda: Agenda) -> list[str]:
    """Each reason once, with the cases that it keeps from running."""
    labels: dict[str, list[str]] = {}
    for refused in agenda.refused:
        labels.setdefault(refused.reason, []).append(refused.label)
    lines = []
    for reason, those in labels.items():
        lines.append(f"not possible here ({len(those)}): {reason}")
        lines += [f"   -  {label}" for label in those]
    return lines


def tally_text(title: str, agenda: Agenda, tally: Tally, folder: Path) -> str:
    """A table of what was measured, and what is left."""
    rows = [result_row(label, measured) for label, measured in tally.measured]
    outcomes = Counter(measured.record.outcome for _, measured in tally.measured)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()) or "nothing"
    lines = [
        *_table(rows),
        (
            f"{title}: {counts}; {agenda.recorded} were recorded before, {len(agenda.refused)} are not "
            "possible here"
        ),
        *_refused_lines(agenda),
    ]
    if tally.warm_up_s:
        lines.append(
            "before the first case torch and Transformers were imported once, in "
            f"{format_seconds(tally.warm_up_s)}"
        )
    if tally.same_crash is not None:
        crashed = f"every case crashed with: {tally.same_crash}"
        lines.append(f"stopped, because {crashed}; when that is mended, --retry crash runs them again")
    if tally.left:
        reason = "the time is over" if tally.stopped else "not begun"
        lines.append(f"{tally.left} cases are left ({reason}); the same command goes on with them")
    lines.append(
        f"records: {folder}; look at them with: measure check '{folder}/*.jsonl'; plan validate "
        f"'{folder}/*.jsonl'"
    )
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[column]) for row in (HEADER, *rows)) for column in range(len(HEADER))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (HEADER, *rows)
    ]
