"""The error budget: how wrong the uncalibrated predictions are on each published document.

``python -m tests.accuracy.budget`` prints the content of ``data/error_budget.toml`` as it is now.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal

from planner.calibration.score.rows import QUANTITIES
from planner.calibration.score.validate import SourceScore
from planner.catalog.location import data_dir
from planner.files.structured import read_toml
from tests.accuracy.published import published_validation

_FILE_NAME = "error_budget.toml"
# Two significant digits, but never finer than a thousandth.
_FINEST_EXPONENT = -3
# An error may grow by this much, a fraction, before somebody has to say why.
_SLACK = 0.01
_HEADER = """\
# Errors of the predictions on each published document.  A test fails when one of them grows beyond its figure here.
# All figures are UNCALIBRATED: no coefficient is fitted to these or any other rows.  They are reached errors, rounded up at the
# second digit, not targets.  *_mape: mean absolute relative error, a fraction.  false_fit, false_oom: wrong verdicts, a count.
# best: the lowest figure that there ever was, where it was lower; a figure that has grown beyond it by a point, or by a verdict
# or a row, stands in data/loosened.toml with the reason.
# Written by `make regenerate`: python -m tests.accuracy.budget into another file, which then replaces this one.
"""


def budget_figures(score: SourceScore) -> dict[str, float]:
    """The figures of one document, unrounded."""
    figures: dict[str, float] = {}
    for name in QUANTITIES:
        summary = getattr(score, name)
        if summary is not None:
            figures[f"{name}_mape"] = summary.mape
    counts = {"false_fit": score.oom.false_fit, "false_oom": score.oom.false_oom, "not_modelled": score.not_modelled}
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


def best_figures() -> Mapping[str, Mapping[str, float]]:
    """The lowest figures that there ever were, by document, where these are lower than those that are stored.

    Raises:
        InputFileError: missing or malformed.
    """
    best: Mapping[str, Mapping[str, float]] = read_toml(data_dir() / _FILE_NAME).get("best", {})
    return best


def beyond_budget(scores: Iterable[SourceScore]) -> list[str]:
    """Figures of uncalibrated predictions above the stored ones, or of a document that has none, each in one line."""
    stored, found = stored_budget(), list[str]()
    for score in scores:
        allowed = stored.get(score.source, {})
        for name, value in budget_figures(score).items():
            if value > allowed.get(name, 0.0):
                found.append(f"{score.source}: {name} is {value:.4g} with no fit, {allowed.get(name, 'nothing')} was stored")
    return found


def loosened() -> tuple[str, ...]:
    """``DOCUMENT: figure`` of each stored figure that is a point, a verdict or a row worse than it ever was."""
    stored = stored_budget()
    found = []
    for document, figures in best_figures().items():
        for name, best in figures.items():
            slack = _SLACK if name.endswith("_mape") else 0
            if stored.get(document, {}).get(name, 0.0) > best + slack:
                found.append(f"{document}: {name}")
    return tuple(found)


def budget_toml() -> str:
    """Content of the file for the code as it is; what was best is taken over from the file, so that it is not lost."""
    before, best = stored_budget(), best_figures()
    validation = published_validation()
    lines = [_HEADER, f"date = {datetime.now(UTC).date().isoformat()}", f'calibration = "{validation.calibration}"']
    for score in validation.sources:
        figures = _stored_figures(score)
        lines += ["", f'[documents."{score.source}"]', *(f"{name} = {value}" for name, value in figures.items())]
    for score in validation.sources:
        figures, old = _stored_figures(score), {**before.get(score.source, {}), **best.get(score.source, {})}
        lower = [f"{name} = {old[name]}" for name, value in figures.items() if old.get(name, value) < value]
        lines += ["", f'[best."{score.source}"]', *lower] if lower else []
    return "\n".join(lines) + "\n"


def _stored_figures(score: SourceScore) -> dict[str, float]:
    return {name: rounded_up(value) if name.endswith("_mape") else value for name, value in budget_figures(score).items()}


if __name__ == "__main__":
    sys.stdout.write(budget_toml())
