"""Published rows as points: intervals carried over to what was printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.calibration.score.points import Point, points_of
from planner.calibration.score.validate import Validation, validate
from planner.catalog.location import data_dir
from planner.domain.uncertainty.interval import Interval
from planner.records import read_records
from planner.records.calibration_file import read_calibration
from planner.units import GIB
from tests.accuracy.drawn import stored_drawn
from tests.accuracy.published import core_validation, published_dir
from tests.accuracy.tables import scale_and_unit, token_rate_points
from tests.extras import import_or_skip


@pytest.fixture(scope="module")
def calibrated() -> Validation:
    """The four documents with the calibration that ships."""
    calibration = read_calibration(data_dir() / "calibration" / "default.json")
    return validate(read_records([published_dir() / "00*.csv"]), calibration)


def test_without_a_calibration_there_is_no_interval() -> None:
    """Plain coefficients give points without intervals."""
    points = points_of(core_validation().rows, "memory")
    assert {point.interval for point in points} == {None}


def test_the_interval_of_a_total_is_that_of_one_gpu_times_their_number(calibrated: Validation) -> None:
    """Memory that a document sums over GPUs has the interval of one of them, as a share of the prediction."""
    row = next(row for row in calibrated.rows if row.memory is not None and "of 2 GPUs" in row.memory.note)
    assert row.prediction is not None
    assert row.prediction.uncertainty is not None
    one = dict(row.prediction.uncertainty.memory)["driver"]
    (point,) = points_of([row], "memory")
    assert point.interval is not None
    assert (point.interval.low, point.interval.high) == pytest.approx((2 * one.low, 2 * one.high))


def test_the_interval_of_a_rate_is_that_of_the_step_upside_down(calibrated: Validation) -> None:
    """The slowest step of the interval is the lowest rate."""
    row = next(
        row
        for row in calibrated.rows
        if row.throughput is not None and row.throughput.quantity == "samples_per_s"
    )
    assert row.prediction is not None
    assert row.prediction.time is not None
    assert row.prediction.uncertainty is not None
    step = row.prediction.uncertainty.step
    assert step is not None
    samples = row.prediction.time.samples_per_s * row.prediction.time.step_s
    (point,) = points_of([row], "throughput")
    assert point.interval is not None
    assert (point.interval.low, point.interval.high) == pytest.approx(
        (samples / step.high, samples / step.low)
    )


def test_both_ends_count_as_inside() -> None:
    """A measurement on the edge of its interval is inside, one beyond it is not."""
    points = [
        Point(str(value), "s", "g", "step_time_s", value, 2.0, Interval(1.0, 3.0))
        for value in (1.0, 3.0, 3.1)
    ]
    assert [point.is_inside for point in points] == [True, True, False]


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [("driver_bytes", (GIB, "GiB")), ("samples_per_s", (1.0, "samples/s")), ("run_time_s", (1.0, "s"))],
)
def test_units_that_people_read(quantity: str, expected: tuple[float, str]) -> None:
    """Bytes are shown in GiB, rates and times as they are."""
    assert scale_and_unit(quantity) == expected


def test_times_of_all_kinds_share_one_unit() -> None:
    """A time and a rate both become tokens per second, as much too fast as the printed number says."""
    rows = {row.record.id: row for row in core_validation().rows}
    points = {point.record_id: point for point in token_rate_points(rows.values())}
    assert set(points) == {name for name, row in rows.items() if row.throughput is not None}
    for name in ("001-t1-r01", "002-t1-r01-s0256"):
        comparison = rows[name].throughput
        assert comparison is not None
        slower = comparison.predicted / comparison.measured
        expected = slower if comparison.is_rate else 1 / slower
        assert points[name].predicted / points[name].measured == pytest.approx(expected)


def test_the_scatter_is_a_picture(tmp_path: Path) -> None:
    """All three parts are drawn into one PNG."""
    import_or_skip("matplotlib")
    from tests.accuracy.scatter import write_scatter

    write_scatter(stored_drawn(), tmp_path / "scatter.png")
    assert (tmp_path / "scatter.png").stat().st_size > 10_000
