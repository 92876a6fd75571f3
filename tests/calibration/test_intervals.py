"""Intervals from held-out residuals: asymmetric, coarser where there is little data, and their coverage is measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.calibration.intervals import Residual, make_spreads, measured_coverage
from planner.domain.calibration import Calibration, Support, formulas_version, lengths_of
from planner.domain.coefficients import Coefficients
from planner.domain.interval import NOMINAL_COVERAGE, Spread, SpreadKey, find_spread, interval_around
from planner.domain.scenario import Scenario
from planner.estimate import estimate, estimate_calibrated
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.units import MIB

KEY = SpreadKey("driver", "lora", "fixed", "near")


def residuals(groups: int, rows: int, scale: float = 0.1, key: SpreadKey = KEY) -> list[Residual]:
    """Log ratios with a long upper tail, the same law in every group."""
    generator = np.random.default_rng(3)
    draws = scale * generator.gumbel(size=(groups, rows))
    return [Residual(f"{g}-{i}", f"group-{g}", key, float(draws[g, i])) for g in range(groups) for i in range(rows)]


def calibration(*, half_width: float = 0.1) -> Calibration:
    """Untouched coefficients with intervals of +- ``half_width`` around every driver peak."""
    spread = Spread(
        SpreadKey("driver"), (0.01, 0.05, 0.5, 0.95, 0.99), (-2 * half_width, -half_width, 0.0, half_width, 0.5), 50, 3
    )
    support = Support(("ada",), ("rtx4090",), ("hf-trainer",), ("qlora",))
    return Calibration("test", "2026-01-01", formulas_version(), (), (spread,), support)


def job(**flags: object) -> Scenario:
    """A QLoRA job, changed by ``flags``."""
    return resolve(from_flags({"model": "7b", "method": "qlora", "gpu": "4090", "seq": 1024, **flags}))


def test_coverage_is_near_the_nominal_one() -> None:
    """Where all groups follow one law, held-out coverage of the 90 % interval is 86 to 94 %."""
    share = measured_coverage(residuals(12, 40))["driver"]
    assert 0.86 <= share <= 0.94


def test_intervals_follow_the_longer_tail() -> None:
    """Measured values scatter further up than down, so the interval does, too."""
    (spread,) = [each for each in make_spreads(residuals(6, 60)) if each.key == SpreadKey("driver")]
    assert spread.quantile(0.95) - spread.quantile(0.5) > 1.3 * (spread.quantile(0.5) - spread.quantile(0.05))


def test_a_class_with_little_data_uses_a_coarser_one() -> None:
    """Five rows make no distribution of their own; the one of all methods stands in."""
    few = residuals(2, 3, key=replace(KEY, method="full"))
    spreads = {each.key: each for each in make_spreads([*residuals(4, 30), *few])}
    found = find_spread(spreads, replace(KEY, method="full"))
    assert found is not None
    assert found.key == replace(KEY, method="")
    assert find_spread(spreads, SpreadKey("time")) is None


def test_a_group_with_many_rows_does_not_decide_alone() -> None:
    """A table of 400 rows with small errors leaves room for five small ones with large errors."""
    mixed = [*residuals(1, 400, scale=0.01), *[replace(each, group=f"x{each.group}") for each in residuals(5, 10, scale=0.2)]]
    (spread,) = [each for each in make_spreads(mixed) if each.key == SpreadKey("driver")]
    pooled = float(np.quantile([each.log_ratio for each in mixed], 0.95))
    assert spread.quantile(0.95) > 1.2 * pooled


def test_probability_to_fit_is_the_share_below_the_limit() -> None:
    """Far below the limit it is 1, far above 0, at the limit a half, and only in between the verdict is uncertain."""
    model = calibration()
    need = float(estimate(job()).memory.must_have_bytes)
    for ratio, probability, verdict in ((3.0, 1.0, "fits"), (1.0, 0.5, "uncertain"), (0.5, 0.0, "does_not_fit")):
        found = estimate_calibrated(job(gpu_memory=f"{need * ratio / MIB:.3f}MiB"), model)
        assert found.fits_probability == pytest.approx(probability, abs=0.02)
        assert found.verdict == verdict


def test_intervals_stand_around_the_prediction() -> None:
    """The driver peak times the quantiles; a level without data has no interval."""
    found = estimate_calibrated(job(), calibration())
    assert found.uncertainty is not None
    intervals = dict(found.uncertainty.memory)
    assert intervals.keys() == {"driver"}
    peak = float(found.memory.driver_peak_bytes)
    assert intervals["driver"].low == pytest.approx(peak * np.exp(-0.1))
    assert intervals["driver"].high == pytest.approx(peak * np.exp(0.1))
    assert found.uncertainty.step is None
    assert found.uncertainty.nominal == NOMINAL_COVERAGE


def test_an_unseen_gpu_or_stack_is_said() -> None:
    """The report names what no calibrated record had; nothing is named where all of it was seen."""
    model = calibration()
    assert model.extrapolates(job()) == ()
    assert model.extrapolates(job(gpu="h100-sxm")) == ("GPU generation hopper",)
    assert "method full" in model.extrapolates(job(method="full"))
    assert model.distance(job(gpu="h100-sxm")) == "far"


def test_lengths_are_natural_where_that_is_said() -> None:
    """Padding to the longest with shorter samples changes shapes from step to step; packed and full samples do not."""
    assert lengths_of(job()) == "fixed"
    assert lengths_of(job(padding="packed")) == "fixed"
    assert lengths_of(job(padding="longest")) == "natural"
    assert lengths_of(job(tokens_per_sample=500)) == "natural"


def test_an_interval_is_in_the_unit_of_its_number() -> None:
    """Quantiles are of logarithms, the interval is not."""
    spread = Spread(KEY, (0.05, 0.95), (-0.1, 0.2), 10, 2)
    interval = interval_around(spread, 100.0)
    assert (interval.low, interval.high) == (pytest.approx(90.48, abs=0.01), pytest.approx(122.14, abs=0.01))


def test_identity_coefficients_are_the_priors() -> None:
    """A calibration without offsets predicts what the priors predict."""
    assert replace(calibration().coefficients_for(job()), name="uncalibrated") == Coefficients()
