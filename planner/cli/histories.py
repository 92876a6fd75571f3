"""``plan validate --history``: recorded allocator histories,
replayed by ``measure replay`` in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from pydantic import ValidationError

from planner.allocator.documents.replay_document import ReplayDocument
from planner.calibration.score.rows import RowScore
from planner.errors import ExitCode, UsageError, how_to_install
from planner.records import RecordSet
from planner.report.validation.recorded_history import HistoryScore, score_history

_MODULE = "measure"
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
    if find_spec(_MODULE) is None:
        raise UsageError(f"the package 'measure' is not installed; {how_to_install('measure')}")
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
    document = _replayed(path)
    return (
        document
        if isinstance(document, str)
        else score_history(row.record.id, document, row.prediction.memory)
    )


def _lies_below(folder: Path, path: Path) -> bool:
    """Whether ``path``, whose name comes from a file, points below ``folder``;
    not where no file can have that name.
    """
    try:
        path.is_file()
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):
        return False


def _replayed(path: Path) -> ReplayDocument | str:
    """What ``measure replay`` says about one file, or why it says nothing."""
    command = [sys.executable, "-m", _MODULE, "replay", "--json", "--", str(path)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=LONGEST_REPLAY_S,
        )
    except subprocess.TimeoutExpired:
        return (
            f"skipped: its replay took more than {LONGEST_REPLAY_S} s; without this limit: measure "
            f"replay {path}"
        )
    if done.returncode != ExitCode.FITS:
        lines = done.stderr.strip().splitlines()
        return "skipped: " + (
            lines[-1].removeprefix("measure: ") if lines else f"measure replay ended with {done.returncode}"
        )
    try:
        return ReplayDocument.model_validate_json(done.stdout)
    except ValidationError as error:
        return (
            "skipped: what measure replay wrote is not the document that plan reads: "
            f"{error.errors()[0]['msg']}"
        )
