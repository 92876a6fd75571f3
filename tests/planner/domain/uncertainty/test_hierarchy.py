"""How far a coefficient is moved from its prior."""

from __future__ import annotations

from planner.domain.uncertainty.coefficients import PRIORS
from planner.domain.uncertainty.hierarchy import FREEDOM, moved


def test_an_extreme_offset_ends_at_a_bound() -> None:
    """However far a coefficient is moved, it stays inside its bounds, and small moves are exact."""
    for prior in (each for each in PRIORS if each.name in FREEDOM):
        assert moved(prior.name, 1e6) == prior.high
        assert moved(prior.name, -1e6) == prior.low
        assert moved(prior.name, 0.0) == prior.value
