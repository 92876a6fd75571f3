"""``plan validate --history``: recorded allocator histories,
replayed by ``measure replay`` in a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planner.allocator.documents.replay_document import ReplayDocument
from planner.api.measure_process import need_measure, run_measure
from planner.calibration.score.rows import RowScore
from planner.errors import PlannerError, UsageError
from planner.records import RecordSet
from planner.report.validation.recorded_history import HistoryScore, score_history

# A real history of ten steps takes seconds; one that is made to be slow shall not hold up the others.
LONGEST_REPLAY_S = 60


def score_histories(records: RecordSet, rows: tuple[RowScore, ...]) -> dict[str, HistoryScore | str]:
    """The history of each record that has one, beside its prediction; a text where it cannot be had.

    Raises:
        UsageError: no record has a history, or the package that replays them is missing.
    """
    found = {
        row.record.id: (row, name)
        for row in rows
        if (name := _history_name(records.attachments.get(row.record.id, {})))
    }
    if not found:
        raise UsageError(
            "no record of these files has an allocator history: measure with measure run --history on a GPU"
        )
    need_measure()
    return {record_id: _score(records, row, name) for record_id, (row, name) in found.items()}


def _history_name(attachments: Mapping[str, object]) -> str | None:
    raw = attachments.get("raw")
    name = raw.get("history") if isinstance(raw, Mapping) else None
    return name if isinstance(name, str) else None


def _score(records: RecordSet, row: RowScore, name: str) -> HistoryScore | str:
    folder = Path(records.places[row.record.id].rpartition(":")[0]).parent
    path = folder / name
    if not _lies_below(folder, path):
        return "skipped: its history is named outside of the folder of its record, so it is not read"
    if row.prediction is None:
        return f"skipped: no prediction to set it beside: {row.not_modelled}"
    if not path.is_file():
        return f"skipped: its history is not beside its record: {path} is missing"
    try:
        document = run_measure(
            ReplayDocument, ("replay", "--json", "--", str(path)), timeout_s=LONGEST_REPLAY_S
        )
    except PlannerError as error:
        return f"skipped: {error}; without this limit: measure replay {path}"
    return score_history(row.record.id, document, row.prediction.memory)


def _lies_below(folder: Path, path: Path) -> bool:
    """Whether ``path``, whose name comes from a file, points below ``folder``;
    not where no file can have that name.
    """
    try:
        path.is_file()
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):
        return False
