"""From a job to a verdict: the order of its reasons, and P(fits) of a calibration made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.scenario import Scenario
from planner.domain.term import LENGTH_CACHE
from planner.domain.uncertainty.calibration import Calibration, Support, formulas_version
from planner.domain.uncertainty.interval import NORMAL_QUANTILE, Spread, SpreadKey
from planner.memory.quick import predict_quick
from planner.predicting import PRIORS, estimate, estimate_calibrated, judge, order_reach_bytes, predict_with
from planner.program.job import job_of
from planner.units import GIB
from tests.planner.calibration.score.made import HOST, MEMORY
from tests.planner.intake.jobs import scenario_of

PROBABILITIES = (0.05, 0.5, 0.95)
NEED = Spread(SpreadKey("need"), PROBABILITIES, (-0.1, 0.0, 0.1), 100, 10)
PEAK = Spread(SpreadKey("memory"), PROBABILITIES, (-0.1, 0.0, 0.2), 100, 10)
SUPPORT = Support(("ada",), ("rtx4090",), ("hf-trainer",), ("lora",), ("none",), ("nvidia",))


def calibration(*spreads: Spread) -> Calibration:
    """No offsets, and these distributions."""
    return Calibration("made", "2026-01-01", formulas_version(), (), spreads, SUPPORT)


def on_card(limit_bytes: int, **flags: object) -> Scenario:
    """A LoRA fine-tune on a card with so many visible bytes."""
    scenario = scenario_of(model="llama-3.2-1b", **flags)
    gpu = replace(scenario.hardware.gpu, visible_memory_bytes=limit_bytes)
    return replace(scenario, hardware=replace(scenario.hardware, gpu=gpu))


def test_what_is_missing_is_said_before_anything_else() -> None:
    """26 GiB on a card of 24; that the node is short, too, is not the first thing to know."""
    short = replace(MEMORY, must_have_bytes=26 * GIB)
    verdict, reason = judge(short, replace(HOST, available_bytes=GIB))
    assert verdict == "does_not_fit"
    assert reason.startswith("2.00 GiB are missing at the peak")


def test_a_job_that_needs_all_of_the_card_fits() -> None:
    """It fills the card where its cache does not fit beside; else what remains is said."""
    assert judge(replace(MEMORY, must_have_bytes=24 * GIB), HOST)[0] == "fits"
    assert judge(MEMORY, HOST)[1].startswith("it fills the card")
    verdict, reason = judge(replace(MEMORY, uncapped_driver_bytes=21 * GIB), HOST)
    assert (verdict, reason[:24]) == ("fits", "3.00 GiB remain free at ")


@pytest.mark.parametrize(
    ("available", "verdict", "saving"), [(40, "fits", False), (36, "", True), (30, "", False)]
)
def test_a_node_may_be_short_only_while_it_saves(available: int, verdict: str, saving: bool) -> None:
    """40 GiB are needed, of which steps take 32."""
    found, reason = judge(MEMORY, replace(HOST, available_bytes=available * GIB))
    assert found == (verdict or "host_memory_short")
    if not verdict:
        assert f"{40 - available}.00 GiB more than it has" in reason
        assert ("while it saves" in reason) is saving


def test_a_card_of_unknown_memory_has_no_verdict() -> None:
    """The flag that gives it is named."""
    verdict, reason = judge(replace(MEMORY, limit_bytes=None), HOST)
    assert verdict == "no_verdict"
    assert "--gpu-memory" in reason


def test_the_order_of_samples_moves_no_more_down_than_was_piled_up() -> None:
    """Quantiles of a normal distribution: 5 % on either side; nothing where lengths are fixed."""
    assert order_reach_bytes(MEMORY) == (0, 0)
    term = replace(predict_quick(job_of(on_card(24 * GIB), PRIORS)).terms[0], label=LENGTH_CACHE, n_bytes=GIB)
    piled = replace(MEMORY, order_spread_bytes=GIB, terms=(term,))
    assert order_reach_bytes(piled) == (GIB, NORMAL_QUANTILE * GIB)


def test_a_limit_at_the_prediction_is_a_coin_toss() -> None:
    """Half of all measurements need more; far from it the verdict is that of the prediction."""
    known = calibration(NEED)
    need = int(estimate(on_card(24 * GIB)).memory.must_have_bytes)
    even = estimate_calibrated(on_card(need), known)
    assert even.fits_probability == pytest.approx(0.5, abs=0.02)
    assert even.verdict == "uncertain"
    chances = [estimate_calibrated(on_card(int(need * share)), known) for share in (0.5, 3.0)]
    assert [(each.fits_probability, each.verdict) for each in chances] == [
        (0.0, "does_not_fit"),
        (1.0, "fits"),
    ]
    assert estimate_calibrated(on_card(0), known).fits_probability == 0.0


def test_without_distributions_nothing_is_promised() -> None:
    """The verdict is that of the point estimate, which plain coefficients give as well."""
    scenario = on_card(24 * GIB)
    plain, bare = predict_with(scenario, PRIORS), predict_with(scenario, calibration())
    assert (bare.fits_probability, bare.verdict) == (None, plain.verdict)
    assert bare.uncertainty is not None
    assert (bare.uncertainty.memory, bare.uncertainty.step) == ((), None)
    assert plain.uncertainty is None
    assert plain == estimate(scenario)


def test_the_interval_of_a_full_card_begins_below_what_it_shows() -> None:
    """By as much as that of a roomy one, though an unlimited card would show more."""
    again = {"gradient_checkpointing": True}
    roomy = estimate(on_card(80 * GIB, **again)).memory
    need, shown = float(roomy.must_have_bytes), float(roomy.uncapped_driver_bytes)
    card = int(need + 0.7 * (shown - need))
    found = estimate_calibrated(on_card(card, **again), calibration(PEAK))
    assert found.uncertainty is not None
    around, peak = dict(found.uncertainty.memory)["driver"], float(found.memory.driver_peak_bytes)
    unlimited = estimate_calibrated(on_card(80 * GIB, **again), calibration(PEAK))
    assert unlimited.uncertainty is not None
    plain = dict(unlimited.uncertainty.memory)["driver"]
    assert peak < shown
    assert around.low / peak == pytest.approx(plain.low / shown)
    assert around.high == card


def test_an_interval_holds_its_prediction_and_ends_at_the_card() -> None:
    """Where the job fits, no reading is above the card; its upper side is the longer one."""
    roomy, known = on_card(80 * GIB), calibration(PEAK)
    memory = estimate(roomy).memory
    card = int(float(memory.driver_peak_bytes) * 1.001)
    for scenario, ends_there in ((roomy, False), (on_card(card), True)):
        found = estimate_calibrated(scenario, known)
        assert found.uncertainty is not None
        around, peak = dict(found.uncertainty.memory)["driver"], float(found.memory.driver_peak_bytes)
        assert around.low < peak <= around.high
        assert (around.high == card) is ends_there
        assert ends_there or around.high - peak > peak - around.low


@pytest.mark.parametrize(
    ("optimizer", "limit_gib", "said"),
    [("paged_adamw_32bit", 12, True), ("paged_adamw_32bit", 48, False), ("adamw_torch", 12, False)],
)
def test_paged_states_that_do_not_all_fit_are_said(optimizer: str, limit_gib: int, said: bool) -> None:
    """They cross the bus in each step, which no term of the time has."""
    tight = on_card(limit_gib * GIB, method="full", optimizer=optimizer, batch=1, seq=256)
    found = estimate(tight, PRIORS, quick=True)
    assert (found.memory.uncapped_driver_bytes > limit_gib * GIB) is (limit_gib == 12)
    assert any(each.startswith("Paged optimizer states") for each in found.warnings) is said
