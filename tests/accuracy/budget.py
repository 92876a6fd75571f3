"""The error budget: how wrong the predictions are on each published document with nothing fitted to these or
any other rows.

It is the part ``budget`` of ``data/accuracy.json``: reached errors, rounded up at the second digit,
not targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal

from planner.calibration.score.rows import QUANTITIES
from planner.calibration.score.validate import SourceScore
from tests.accuracy.stored import stored_accuracy, stored_or_empty

# Two significant digits, but never finer than a thousandth.
_FINEST_EXPONENT = -3
# An error may grow by this much, a fraction, before somebody has to say why.
_SLACK = 0.01


def budget_figures(score: SourceScore) -> dict[str, float]:
    """The figures of one document, unrounded."""
    figures: dict[str, float] = {}
    for name in QUANTITIES:
        summary = getattr(score, name)
        if summary is not None:
            figures[f"{name}_mape"] = summary.mape
    counts = {
        "false_fit": score.oom.false_fit,
        "false_oom": score.oom.false_oom,
        "not_modelled": score.not_modelled,
    }
    return figures | counts


def rounded_up(value: float) -> float:
    """``value`` rounded up to two significant digits, or to a thousandth where that is coarser."""
    if value == 0:
        return 0.0
    exponent = max(math.floor(math.log10(value)) - 1, _FINEST_EXPONENT)
    return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(exponent), rounding=ROUND_CEILING))


def stored_budget() -> Mapping[str, Mapping[str, float]]:
    """Stored figures by document.

    Raises:
        InputFileError: missing or malformed.
    """
    documents: Mapping[str, Mapping[str, float]] = stored_accuracy()["budget"]["documents"]
    return documents


def best_figures() -> Mapping[str, Mapping[str, float]]:
    """The lowest figures that there ever were, by document, where these are lower than those that are stored.

    Raises:
        InputFileError: missing or malformed.
    """
    best: Mapping[str, Mapping[str, float]] = stored_accuracy()["budget"]["best"]
    return best


def beyond_budget(scores: Iterable[SourceScore]) -> list[str]:
    """Figures of uncalibrated predictions above the stored ones, or of a document that has none,
    each in one line.
    """
    stored, found = stored_budget(), list[str]()
    for score in scores:
        allowed = stored.get(score.source, {})
        for name, value in budget_figures(score).items():
            if value > allowed.get(name, 0.0):
                found.append(
                    f"{score.source}: {name} is {value:.4g} with no fit, "
                    f"{allowed.get(name, 'nothing')} was stored"
                )
    return found


def loosened() -> tuple[str, ...]:
    """``DOCUMENT: figure`` of each stored figure that is a point,
    a verdict or a row worse than it ever was.
    """
    stored = stored_budget()
    found = []
    for document, figures in best_figures().items():
        for name, best in figures.items():
            slack = _SLACK if name.endswith("_mape") else 0
            if stored.get(document, {}).get(name, 0.0) > best + slack:
                found.append(f"{document}: {name}")
    return tuple(found)


def budget_part(scores: Sequence[SourceScore]) -> dict[str, dict[str, dict[str, float]]]:
    """The part of the file for the code as it is; what was best is taken over from the file,
    so that it is not lost.
    """
    stored = stored_or_empty().get("budget", {})
    documents = {score.source: _stored_figures(score) for score in scores}
    best = dict[str, dict[str, float]]()
    for name, figures in documents.items():
        old = {**stored.get("documents", {}).get(name, {}), **stored.get("best", {}).get(name, {})}
        if lower := {key: old[key] for key, value in figures.items() if old.get(key, value) < value}:
            best[name] = lower
    return {"documents": documents, "best": best}


def _stored_figures(score: SourceScore) -> dict[str, float]:
    return {
        name: rounded_up(value) if name.endswith("_mape") else value
        for name, value in budget_figures(score).items()
    }
