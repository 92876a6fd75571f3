"""What other estimators say of the same published rows: their errors, a part of ``data/accuracy.json``.

It is written by ``python -m tests.accuracy.estimators``, which calls the estimators' own code;
here it is only read.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.accuracy.stored import stored_accuracy


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


def stored_other_tools() -> tuple[ToolError, ...]:
    """The stored comparison.

    Raises:
        InputFileError: the file is missing or malformed.
    """
    tools = [
        {name: value for name, value in tool.items() if name != "points"}
        for tool in stored_accuracy()["other_tools"]
    ]
    return tuple(ToolError(**tool) for tool in tools)
