"""What other estimators say of the same published rows: their errors, kept in ``data/other_tools.toml``.

The file is written by ``python tests/validation/other_tools.py``, which calls the estimators' own code; here it is only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.catalog.location import data_dir
from planner.files.structured import read_toml

FILE_NAME = "other_tools.toml"


@dataclass(frozen=True, slots=True)
class ToolError:
    """One estimator on the rows to which it applies; errors are fractions of the measured GPU memory.

    ``ours``: our error on the same rows without a fit; ``applies_to``: which rows, in words.
    """

    name: str
    applies_to: str
    n_rows: int
    mape: float
    median_signed: float
    ours_mape: float


def stored_other_tools(path: Path | None = None) -> tuple[ToolError, ...]:
    """The stored comparison.

    Raises:
        InputFileError: the file is missing or not TOML.
    """
    content: Mapping[str, object] = read_toml(path or data_dir() / FILE_NAME)
    tools = content["tool"]
    assert isinstance(tools, list)
    return tuple(ToolError(**tool) for tool in tools)
