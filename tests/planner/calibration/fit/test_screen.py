"""Records that a fit must not use are left out, each by a named rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import pytest

from planner.calibration.fit.calibrate import calibrate
from planner.calibration.fit.screen import RULES, screen
from planner.calibration.fit.targets import MAX_SHARE_OF_PEAK, Target, most_of_peak, targets_of
from planner.calibration.fit.unused import doubtful, unused_readings
from planner.domain.run_record import RunRecord, Use
from planner.domain.uncertainty.coefficients import Coefficients
from planner.records import read_records
from tests.accuracy.published import published_dir
from tests.planner.calibration.simulated import simulated

GOOD = simulated({"doc-d": Coefficients()})[0]

CASES: dict[str, RunRecord] = {
    "not_modelled": replace(GOOD, id="x", pipeline_parallel=2),
    "unusable": replace(GOOD, id="x", gpu="rtx9999"),
    "cpu_record": replace(GOOD, id="x", gpu="cpu"),
    "failed_run": replace(GOOD, id="x", outcome="crash"),
    "repeat": replace(GOOD, id="x", use="repeat"),
    "duplicate": replace(GOOD, id="x", notes="copied"),
    "refused": replace(GOOD, id="x", lora_targets=("nosuch",)),
    "above_card": replace(GOOD, id="x", peak_memory_mib=61_440.0),
    "no_reading": replace(GOOD, id="x", peak_memory_mib=None, step_time_s=None),
    "below_weights": replace(GOOD, id="x", peak_memory_mib=7.5),
}
# A row with such a time stays, because its memory is as good as any.
TIMES: dict[str, RunRecord] = {
    "impossible_rate": replace(GOOD, id="x", step_time_s=(GOOD.step_time_s or 0) / 50),
    "clock_locked": replace(GOOD, id="x", step_time_s=(GOOD.step_time_s or 0) * 6, use="clock_locked"),
    "loop_time": replace(GOOD, id="x", step_time_s=(GOOD.step_time_s or 0) * 2, use="loop_time"),
    "link_unknown": replace(GOOD, id="x", step_time_s=(GOOD.step_time_s or 0) * 3, use="link_unknown"),
    "power_unknown": replace(GOOD, id="x", step_time_s=(GOOD.step_time_s or 0) * 4, use="power_unknown"),
    "routing_unknown": replace(GOOD, id="x", step_time_s=(GOOD.step_time_s or 0) * 5, use="routing_unknown"),
    "lengths_untold": replace(GOOD, id="x", padding="longest", tokens_per_sample=None),
    "not_timed": replace(GOOD, id="x", step_time_s=None, run_time_s=3600.0),
}
PEAKS: dict[str, RunRecord] = {
    "length_at_peak_unknown": replace(
        GOOD, id="x", peak_memory_mib=(GOOD.peak_memory_mib or 0) * 2, use="length_at_peak_unknown"
    ),
    "data_on_card": replace(
        GOOD, id="x", peak_memory_mib=(GOOD.peak_memory_mib or 0) * 4, use="data_on_card"
    ),
}
LINES = ("newer_schema", "no_file", "unreadable", "repeated_id", "unfinished")


@pytest.mark.parametrize("rule", CASES)
def test_a_bad_record_is_left_out_by_its_rule(rule: str) -> None:
    """The good record stays, the bad one is named with the rule and a reason."""
    found = screen([GOOD, CASES[rule]])
    assert [record.id for record, _ in found.used] == [GOOD.id]
    assert [(each.record_id, each.rule) for each in found.left_out] == [("x", rule)]
    assert len(found.left_out[0].reason) > 20


@pytest.mark.parametrize("rule", TIMES)
def test_a_time_that_teaches_nothing_is_left_out_alone(rule: str) -> None:
    """The row's memory is fitted, its time is not, and the rule says so by name."""
    screened = screen([GOOD, TIMES[rule]])
    assert [record.id for record, _ in screened.used] == [GOOD.id, "x"]
    assert [(each.record_id, each.rule) for each in unused_readings(screened.used)] == [("x", rule)]
    assert [target.quantity for target in targets_of(*screened.used[1])] == ["memory"]


@pytest.mark.parametrize("rule", PEAKS)
@pytest.mark.parametrize("outcome", ["ok", "oom"])
def test_a_peak_that_teaches_nothing_is_left_out_alone(rule: str, outcome: Literal["ok", "oom"]) -> None:
    """The row's time is fitted, its memory is not, whether it ran or not, and the rule says so by name."""
    screened = screen([GOOD, replace(PEAKS[rule], outcome=outcome)])
    assert [(each.record_id, each.rule) for each in unused_readings(screened.used)] == [("x", rule)]
    assert [target.quantity for target in targets_of(*screened.used[1])] == (
        ["throughput"] if outcome == "ok" else []
    )


def test_notes_are_for_people() -> None:
    """No word in a note steers the fit."""
    noted = replace(
        GOOD, id="x", step_time_s=(GOOD.step_time_s or 0) * 2, notes="REPEAT of row 3; TIME OF A LOOP"
    )
    screened = screen([GOOD, noted])
    assert [record.id for record, _ in screened.used] == [GOOD.id, "x"]
    assert unused_readings(screened.used) == ()
    assert len(targets_of(*screened.used[1])) == len(targets_of(*screened.used[0]))


def test_only_what_is_wrong_is_doubtful() -> None:
    """A validation scores what a fit would leave out, and names it;
    a run on a CPU or one that failed has nothing wrong.
    """
    rows = [GOOD, *CASES.values(), *TIMES.values(), *PEAKS.values()]
    named = [replace(each, id=f"{each.id}{number}") for number, each in enumerate(rows)]
    wrong = {"below_weights", "duplicate", "impossible_rate", *get_args(Use)}
    assert {each.rule for each in doubtful(named)} == wrong


def test_a_card_that_reaches_more_of_its_peak_may_sustain_more() -> None:
    """An H20's best product is 0.96 of its peak, an A100's 0.85: the bar for its times is as much higher."""
    bars = {}
    for gpu in ("a100-80-sxm", "h20"):
        record = replace(GOOD, id="x", gpu=gpu)
        scenario = screen([record]).used[0][1]
        bars[gpu] = most_of_peak(Target(record, scenario, "throughput", 1.0))
    assert bars["a100-80-sxm"] == pytest.approx(MAX_SHARE_OF_PEAK, rel=1e-3)
    assert bars["h20"] == pytest.approx(MAX_SHARE_OF_PEAK * (141.86 / 148) / 0.848, rel=1e-3)


def test_no_published_peak_is_below_its_weights() -> None:
    """The rule is about wrong units, not about stacks that hold weights otherwise than assumed."""
    left_out = screen(read_records([published_dir() / "*.csv"]).records).left_out
    assert [each for each in left_out if each.rule == "below_weights"] == []


def test_coefficients_that_stay_are_named_with_the_reason() -> None:
    """No reading without int8 depends on its outliers; a card's efficiency is not what a fit may move."""
    records = simulated({"doc-a": Coefficients(), "doc-b": Coefficients()})
    found = calibrate(records, free={"context_bytes", "int8_outlier_fraction"}).not_fitted
    assert found["int8_outlier_fraction"] == "no reading, or one document alone, depends on it"
    assert found["matmul_efficiency"] == "sources that are left out are predicted no better with it"
    assert "context_bytes" not in found


def test_every_rule_has_a_case() -> None:
    """No rule is listed that nothing can trigger;
    those of lines and machines are tested where these are read.
    """
    assert set(RULES) == {*CASES, *TIMES, *PEAKS, *LINES, "other_machine"}


def test_a_total_over_gpus_may_exceed_one_card() -> None:
    """60 GiB over four 24 GiB cards is no error."""
    spread = replace(GOOD, peak_memory_mib=61_440.0, memory_scope="all_gpus", gpus_per_node=4, sharding="ddp")
    assert screen([spread]).left_out == ()


def test_the_same_configuration_measured_twice_is_kept() -> None:
    """Two readings of one configuration are two measurements, not a duplicate."""
    again = replace(GOOD, id="again", peak_memory_mib=(GOOD.peak_memory_mib or 0) * 1.01)
    assert len(screen([GOOD, again]).used) == 2
