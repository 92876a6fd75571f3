"""What a reading is compared with, and how far it counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.calibration.fit.solver import penalised
from planner.calibration.fit.targets import NOISE, Bound, Target, log_errors, predicted, targets_of
from planner.calibration.intervals.residuals import spread_of
from planner.domain.run_record import RunRecord
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_record
from planner.intake.resolve import resolve
from planner.units import GIB
from tests.planner.calibration.simulated import blank


def test_readings_of_all_quantities_have_a_noise() -> None:
    """No quantity is fitted without a stated spread of its readings."""
    assert set(NOISE) == {"memory", "throughput", "host_memory"}
    assert all(0.01 <= noise <= 0.3 for noise in NOISE.values())


def record_of(**columns: object) -> tuple[RunRecord, Scenario]:
    """One record and its job."""
    record = replace(blank("doc-a", "a100-40-sxm", "lora", (1, 512)), **columns)  # type: ignore[arg-type]
    return record, resolve(from_record(record), force=True)


def target_of(quantity: str, **columns: object) -> Target | None:
    """The one reading of a quantity, if a fit can use it."""
    return next((each for each in targets_of(*record_of(**columns)) if each.quantity == quantity), None)


def test_a_peak_is_compared_with_a_card_without_a_limit() -> None:
    """A full card shows less than was wanted: such a reading is a lower bound."""
    for censored, bound in ((False, "both"), (True, "at_least")):
        target = target_of("memory", peak_memory_mib=1024.0, censored=censored)
        assert target is not None
        assert (target.measured, target.bound) == (GIB, bound)
        assert target.scenario.hardware.gpu.visible_memory_bytes is None


def test_a_reading_of_the_board_is_fitted_less_what_the_driver_keeps() -> None:
    """As nvidia-smi would have shown it."""
    shown = target_of("memory", peak_memory_mib=1024.0, memory_kind="driver")
    board = target_of("memory", peak_memory_mib=1024.0, memory_kind="board")
    assert shown is not None
    assert board is not None
    kept = board.scenario.hardware.gpu.driver_keeps_bytes
    assert kept
    assert (shown.measured, board.measured) == (GIB, GIB - kept)
    assert spread_of(board) == spread_of(shown) == "driver"


def test_a_job_that_ran_out_needs_more_than_the_card() -> None:
    """Unless it ran out while it loaded, which says nothing of the step."""
    target = target_of("memory", outcome="oom")
    assert target is not None
    hardware = target.scenario.hardware
    assert hardware.gpu.visible_memory_bytes is not None
    assert target.measured == hardware.gpu.visible_memory_bytes - hardware.gpu_reserved_bytes
    assert target.bound == "at_least"
    assert target_of("memory", outcome="oom", phase_reached="load") is None


def test_a_rate_is_fitted_as_a_time() -> None:
    """Four samples a second are a quarter of a second each, so that more is slower."""
    rate, step = target_of("throughput", samples_per_s=4.0), target_of("throughput", step_time_s=0.25)
    assert rate is not None
    assert step is not None
    assert rate.measured == step.measured == 0.25
    assert float(predicted(rate, Coefficients()) or 0) == float(predicted(step, Coefficients()) or 1)


def test_a_time_beyond_the_cards_peak_teaches_nothing() -> None:
    """A step in a microsecond; nor do times of a job that failed."""
    assert target_of("throughput", step_time_s=1e-6) is None
    assert target_of("throughput", step_time_s=0.25, outcome="crash") is None


def test_installed_memory_is_the_most_that_a_node_can_have_used() -> None:
    """A peak is a reading, and one of loading alone is none."""
    host = {"host_memory_mib": 64 * 1024.0}
    installed = target_of("host_memory", **host, host_memory_kind="installed_min")
    peak = target_of("host_memory", **host, host_memory_kind="rss_peak")
    assert installed is not None
    assert peak is not None
    assert (installed.bound, peak.bound, peak.measured) == ("at_most", "both", 64 * GIB)
    assert target_of("host_memory", **host, host_memory_kind="rss_peak", phase_reached="load") is None


def test_machines_are_documents_with_a_card() -> None:
    """And readings whose job had to be inferred count less."""
    target = target_of("memory", peak_memory_mib=1024.0, grade="C")
    assert target is not None
    assert target.host == "doc-a:a100-40-sxm"
    assert target.weight == 0.25


def test_log_errors_are_those_of_the_prediction() -> None:
    """Half of what is predicted was measured: log 2 under every row of offsets."""
    target = target_of("memory", peak_memory_mib=1024.0)
    assert target is not None
    half = replace(target, measured=float(predicted(target, Coefficients()) or 0) / 2)
    assert log_errors(half, {}, 3) == pytest.approx([np.log(2)] * 3)


@pytest.mark.parametrize(
    ("bound", "counts"), [("both", [-0.1, 0.2]), ("at_least", [-0.1, 0.0]), ("at_most", [0.0, 0.2])]
)
def test_only_the_wrong_side_of_a_bound_counts(bound: Bound, counts: list[float]) -> None:
    """A prediction above a lower bound may be right."""
    assert penalised(np.array([-0.1, 0.2]), [bound] * 2).tolist() == counts
