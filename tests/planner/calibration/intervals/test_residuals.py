"""What a reading is held against: what its own card shows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.calibration.fit.targets import Target, on_card
from planner.calibration.intervals.residuals import _below
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_record
from planner.intake.resolve import resolve
from planner.memory.replayed_peak import predict_replayed
from planner.program.job import job_of
from planner.units import MIB
from tests.planner.calibration.simulated import blank

PRIORS = Coefficients()


def test_a_reading_of_a_full_card_is_held_against_what_that_card_shows() -> None:
    """Which is less than an unlimited one would; with room, or of unknown size, it shows as much."""
    record = replace(blank("doc-a", "a100-40-sxm", "lora", (4, 512)), memory_kind="driver")
    scenario = on_card(resolve(from_record(record), force=True), None)
    memory = predict_replayed(job_of(scenario, PRIORS))
    need, shown = float(memory.must_have_bytes), float(memory.uncapped_driver_bytes)
    assert shown - need > 128 * MIB
    card = int(need + 0.7 * (shown - need)) + scenario.hardware.gpu_reserved_bytes
    full = predict_replayed(job_of(on_card(scenario, card), PRIORS))

    def below(card_bytes: int | None) -> float:
        return _below(Target(record, scenario, "memory", shown, card_bytes=card_bytes), PRIORS, memory)

    assert below(card) == pytest.approx(math.log(full.driver_peak_bytes / shown))
    assert below(card) < 0 == below(2 * card) == below(None)
