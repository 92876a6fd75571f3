"""The error budget: how wrong the uncalibrated predictions are on each published document.

``python -m planner.calibration.budget`` prints the content of ``data/error_budget.toml`` as it is now.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal

from planner.calibration.published import QUANTITIES, published_validation
from planner.calibration.validate import SourceScore
from planner.catalog.location import data_dir
from planner.catalog.toml_file import read_toml

_FILE_NAME = "error_budget.toml"
# Two significant digits, but never finer than a thousandth.
_FINEST_EXPONENT = -3
_HEADER = """\
# Errors of the predictions on each published document.  A test fails when one of them grows beyond its figure here.
# All figures are UNCALIBRATED: no coefficient is fitted to these or any other rows.  They are reached errors, rounded up at the
# second digit, not targets.  *_mape: mean absolute relative error, a fraction.  false_fit, false_oom: wrong verdicts, a count.
# Written by: python -m planner.calibration.budget > data/error_budget.toml
"""


def budget_figures(score: SourceScore) -> dict[str, float]:
    """The figures of one document, unrounded."""
    figures: dict[str, float] = {}
    for name in QUANTITIES:
        summary = getattr(score, name)
        if summary is not None:
            figures[f"{name}_mape"] = summary.mape
    counts = {"false_fit": score.oom.false_fit, "false_oom": score.oom.false_oom, "not_modelled": len(score.not_modelled)}
    return figures | counts


def rounded_up(value: float) -> float:
    """``value`` rounded up to two significant digits, or to a thousandth where that is coarser."""
    if value == 0:
        return 0.0
    exponent = max(math.floor(math.log10(value)) - 1, _FINEST_EXPONENT)
    return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(exponent), rounding=ROUND_CEILING))


def stored_budget() -> Mapping[str, Mapping[str, float]]:
    """Figures of ``data/error_budget.toml`` by document.

    Raises:
        InputFileError: missing or malformed.
    """
    documents: Mapping[str, Mapping[str, float]] = read_toml(data_dir() / _FILE_NAME)["documents"]
    return documents


def budget_toml() -> str:
    """Content of the file for the code as it is."""
    validation = published_validation()
    lines = [_HEADER, f"date = {datetime.now(UTC).date().isoformat()}", f'calibration = "{validation.calibration}"']
    for score in validation.sources:
        lines += ["", f'[documents."{score.source}"]']
        for name, value in budget_figures(score).items():
            lines.append(f"{name} = {rounded_up(value) if name.endswith('_mape') else value}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(budget_toml())
