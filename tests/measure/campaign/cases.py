"""Cases and files of campaigns, as several tests need them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from measure.campaign.file import PlannedCase
from measure.run.cases.case import RunOptions

HEAD = "schema = 1\n"


CASE = '[[case]]\nmodel = "qwen2.5-0.5b"\nmethod = "lora"\nseq = 64\n'


def written(folder: Path, text: str) -> Path:
    """A campaign file with this text."""
    path = folder / "c.toml"
    path.write_text(text, encoding="utf-8")
    return path


def case(number: int = 0, **values: object) -> PlannedCase:
    """A case with these values."""
    return PlannedCase({"model": "a", "method": "lora", "seq": 64, **values}, RunOptions(), number)


def finished(outcome: str, error: str | None = None) -> tuple[str, Any]:
    """A case that ended so."""
    record = SimpleNamespace(outcome=outcome, peak_memory_mib=None, step_time_s=None)
    return "case", SimpleNamespace(
        record=record, attachments={"raw": {"error": error}, "quality": {"verdict": "doubtful"}}
    )
