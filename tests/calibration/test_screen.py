"""Records that a fit must not use are left out, each by a named rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.calibration.screen import RULES, screen
from planner.domain.coefficients import Coefficients
from planner.domain.run_record import RunRecord
from tests.calibration.simulated import simulated

GOOD = simulated({"doc-d": Coefficients()})[0]

CASES: dict[str, RunRecord] = {
    "not_modelled": replace(GOOD, id="x", tensor_parallel=2),
    "unusable": replace(GOOD, id="x", gpu="rtx9999"),
    "cpu_record": replace(GOOD, id="x", gpu="cpu"),
    "failed_run": replace(GOOD, id="x", outcome="crash"),
    "repeat": replace(GOOD, id="x", notes="REPEAT of row 3"),
    "duplicate": replace(GOOD, id="x", notes="copied"),
    "above_card": replace(GOOD, id="x", peak_memory_mib=61_440.0),
    "no_reading": replace(GOOD, id="x", peak_memory_mib=None, step_time_s=None),
}


@pytest.mark.parametrize("rule", CASES)
def test_a_bad_record_is_left_out_by_its_rule(rule: str) -> None:
    """The good record stays, the bad one is named with the rule and a reason."""
    found = screen([GOOD, CASES[rule]])
    assert [record.id for record, _ in found.used] == [GOOD.id]
    assert [(each.record_id, each.rule) for each in found.left_out] == [("x", rule)]
    assert len(found.left_out[0].reason) > 20


def test_every_rule_has_a_case() -> None:
    """No rule is listed that nothing can trigger; the other machine is that of a personal calibration, tested there."""
    assert set(RULES) == {*CASES, "other_machine"}


def test_a_total_over_gpus_may_exceed_one_card() -> None:
    """60 GiB over four 24 GiB cards is no error."""
    spread = replace(GOOD, peak_memory_mib=61_440.0, memory_scope="all_gpus", gpus_per_node=4, sharding="ddp")
    assert screen([spread]).left_out == ()


def test_the_same_configuration_measured_twice_is_kept() -> None:
    """Two readings of one configuration are two measurements, not a duplicate."""
    again = replace(GOOD, id="again", peak_memory_mib=(GOOD.peak_memory_mib or 0) * 1.01)
    assert len(screen([GOOD, again]).used) == 2
