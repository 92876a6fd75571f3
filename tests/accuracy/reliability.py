"""Whether as many jobs fit as P(fits) says, held out: rows by their P,
with what sampling alone would allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean

from planner.calibration.score.rows import RowScore

EDGES = (0.0, 0.05, 0.5, 0.7, 0.9, 0.95, 0.99, 1.0)
"""Rows are put together between these."""


def reliability(rows: Sequence[RowScore]) -> list[dict[str, float]]:
    """For each bin: rows, their mean P, the share that ran,
    and one standard error of that share if P were right.
    """
    known = [
        (row.prediction.fits_probability, row.record.outcome == "ok")
        for row in rows
        if row.prediction is not None and row.oom is not None and row.prediction.fits_probability is not None
    ]
    found = []
    for low, high in pairwise(EDGES):
        mine = [each for each in known if low <= each[0] < high or (high == 1.0 and each[0] == high)]
        if mine:
            expected = fmean(probability for probability, _ in mine)
            error = sqrt(sum(probability * (1 - probability) for probability, _ in mine)) / len(mine)
            ran = fmean(float(ok) for _, ok in mine)
            bounds = {"low": low, "high": high, "n": len(mine)}
            found.append(
                {**bounds, "promised": round(expected, 3), "ran": round(ran, 3), "error": round(error, 3)}
            )
    return found
