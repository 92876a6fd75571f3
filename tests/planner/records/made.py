"""Calibration files by hand, from the one that ships."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planner.catalog.location import data_dir
from planner.domain.uncertainty.calibration import Calibration
from planner.records.calibration_file import read_calibration

SHIPPED = data_dir() / "calibration" / "default.json"


def shipped() -> Calibration:
    """The calibration of the package."""
    return read_calibration(SHIPPED)


def content_of_shipped() -> dict[str, Any]:
    """What its file says."""
    content: dict[str, Any] = json.loads(SHIPPED.read_text(encoding="utf-8"))
    return content


def written(folder: Path, content: dict[str, Any], name: str = "mine") -> Path:
    """A calibration file of this content."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content | {"name": name}), encoding="utf-8")
    return path
