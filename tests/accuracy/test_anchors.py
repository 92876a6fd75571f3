"""What one anchor row does for the rest of its machine."""

from __future__ import annotations

from dataclasses import replace

from planner.calibration.fit.calibrate import calibrate
from planner.domain.uncertainty.coefficients import Coefficients
from tests.accuracy.anchors import anchor_gains, machines_of
from tests.planner.calibration.simulated import MACHINES, simulated

SLOW = replace(Coefficients(), matmul_efficiency=0.5, matmul_efficiency_half_rate=0.6, memory_efficiency=0.5)


def test_the_gain_of_an_anchor_is_measured() -> None:
    """Where some machines are slow, an anchor row helps on each of them; the anchor itself is not scored."""
    records = simulated(dict.fromkeys(MACHINES, Coefficients()) | {"doc-b": SLOW, "doc-d": SLOW})
    gains = {gain.group: gain for gain in anchor_gains(calibrate(records), records)}
    assert gains["doc-d"].after < 0.6 * gains["doc-d"].before
    assert gains["doc-d"].n_rows == 12


def test_ambiguous_rows_neither_anchor_nor_count() -> None:
    """A row whose configuration is a guess says nothing of a machine, and its error nothing of the anchor."""
    records = simulated(dict.fromkeys(MACHINES, Coefficients()) | {"doc-d": SLOW})
    guessed = [replace(each, grade="C") if each.source_group == "doc-a" else each for each in records]
    assert {each.group for each in machines_of(guessed)} == set(MACHINES) - {"doc-a"}
