"""Scales by hand, of peaks whose shares are round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.domain.prediction import MemoryPrediction, TimePrediction
from planner.domain.term import Term, TermName, TimeTerm
from planner.domain.uncertainty.scale import (
    Doubt,
    lifted,
    machine_share,
    memory_scale,
    need_scale,
    time_scale,
    widened,
    widest_need_scale,
)
from planner.units import GIB

SURE = Doubt()


def term(name: TermName, n_bytes: float) -> Term:
    """A term of some bytes."""
    return Term(name, name, n_bytes, "replicated", frozenset(), "")


# 12 GiB of states; 4 GiB more are allocated, 2 GiB more reserved, and 2 GiB lie outside of the allocator.
MEMORY = MemoryPrediction(
    terms=(term("weights", 12 * GIB), term("context", 2 * GIB), term("paged_optimizer_states", GIB)),
    phases=(),
    limiting_phase="backward",
    allocated_peak_bytes=16 * GIB,
    reserved_peak_bytes=18 * GIB,
    driver_peak_bytes=19 * GIB,
    uncapped_driver_bytes=20 * GIB,
    must_have_bytes=16 * GIB,
    state_bytes=12 * GIB,
    limit_bytes=None,
    order_spread_bytes=GIB,
)


def test_what_is_allocated_scatters_by_what_is_not_counted() -> None:
    """A quarter of 16 GiB is no state, and 2 GiB are an eighth of it; the order of samples changes none."""
    assert memory_scale(MEMORY, "allocated", SURE) == pytest.approx((0.6**2 + 0.25**2 + 0.125**2) ** 0.5)


def test_what_the_driver_shows_scatters_by_the_order_of_samples_too() -> None:
    """Of 20 GiB without a limit 15 are counted; the order moves a twentieth of it, six times."""
    expected = (0.6**2 + 0.25**2 + 0.1**2 + 0.3**2) ** 0.5  # order: 6 x 1 / 20
    assert memory_scale(MEMORY, "driver", SURE) == pytest.approx(expected)


def test_unknown_lengths_multiply_what_comes_and_goes() -> None:
    """Ten times 6 of the 18 GiB that are reserved, and nothing of what is allocated."""
    unknown = replace(SURE, lengths_unknown=True)
    expected = ((10 / 3) ** 2 + 0.6**2 + (1 / 9) ** 2 + (6 / 18) ** 2) ** 0.5
    assert memory_scale(MEMORY, "reserved", unknown) == pytest.approx(expected)
    assert memory_scale(MEMORY, "allocated", unknown) == memory_scale(MEMORY, "allocated", SURE)


def test_more_states_than_a_peak_leave_nothing_uncounted() -> None:
    """A share below zero would widen what is surest."""
    counted = replace(MEMORY, state_bytes=17 * GIB)
    assert memory_scale(counted, "allocated", SURE) == pytest.approx((0.6**2 + 0.125**2) ** 0.5)


def test_the_minimum_leaves_out_what_can_be_paged_out() -> None:
    """Of 16 GiB 12 are states and 2 context: an eighth is left, and 2 GiB are an eighth, too."""
    assert need_scale(MEMORY, SURE) == pytest.approx((0.6**2 + 2 * 0.125**2) ** 0.5)


def test_gathered_weights_add_one_and_a_half_to_every_level() -> None:
    """As squares: when they come and go depends on how far ahead the host runs; the minimum has its bound."""
    gathers = replace(SURE, gathers=True)
    for level in ("allocated", "reserved", "driver"):
        expected = (float(memory_scale(MEMORY, level, SURE)) ** 2 + 1.5**2) ** 0.5
        assert memory_scale(MEMORY, level, gathers) == pytest.approx(expected)
    found = float(need_scale(MEMORY, gathers))
    assert found == pytest.approx((float(need_scale(MEMORY, SURE)) ** 2 + 1.5**2) ** 0.5)
    assert found < float(widest_need_scale(MEMORY.must_have_bytes, gathers))


@pytest.mark.parametrize(
    ("n_bytes", "expected"), [(0, GIB / 2), (GIB / 4, GIB / 2), (GIB / 2, GIB / 2), (GIB, GIB)]
)
def test_small_peaks_scatter_like_one_of_half_a_gib(n_bytes: float, expected: float) -> None:
    """As a ratio to a few MiB what scatters by bytes would have no bound."""
    assert lifted(n_bytes) == expected


@pytest.mark.parametrize(("scale", "n_unseen", "expected"), [(0.7, 0, 0.7), (0.0, 4, 0.4), (3.0, 400, 5.0)])
def test_each_thing_that_no_record_had_adds_a_part_of_a_scale(
    scale: float, n_unseen: int, expected: float
) -> None:
    """As squares: 9 + 400 x 0.04 is 25."""
    assert widened(scale, n_unseen) == pytest.approx(expected)


def test_rates_of_an_unseen_generation_add_what_products_may_be_off() -> None:
    """As squares: 4 + 1.5 x 1.5 is 6.25; times alone have rates, so other scales of the same doubt stay."""
    assert widened(2.0, 0, rates_unseen=True) == pytest.approx(2.5)
    unseen = Doubt(generation_unseen=True)
    quick = step(TimeTerm("matmul", 2.0, ""))
    assert time_scale(quick, unseen) == pytest.approx((time_scale(quick, SURE) ** 2 + 1.5**2) ** 0.5)
    assert need_scale(MEMORY, unseen) == need_scale(MEMORY, SURE)


def step(*terms: TimeTerm) -> TimePrediction:
    """A step of two seconds."""
    return TimePrediction(terms, 2.0, 1.0, 1.0, 1.0, 1.0, None, None, None)


def test_the_machine_decides_issue_time_and_what_shows_of_its_links() -> None:
    """Half a second of issuing, hidden or not, and 0.4 seconds of a collective that does not hide, of two."""
    launch = TimeTerm("launch", 0.5, "", overlapped_s=0.5)
    ring = TimeTerm("collectives", 1.0, "", overlapped_s=0.6)
    kernels = TimeTerm("matmul", 1.5, "")
    assert machine_share(step(launch, kernels)) == pytest.approx(0.25)
    assert machine_share(step(launch, ring, kernels)) == pytest.approx(0.25 + 0.2)
    assert machine_share(step(kernels)) == 0


def test_issuing_counts_as_the_whole_step_at_most() -> None:
    """Three seconds that are issued behind two seconds of kernels."""
    assert machine_share(step(TimeTerm("launch", 3.0, "", 1.0))) == pytest.approx(1.0)


def test_a_faster_host_saves_only_what_shows() -> None:
    """Of a second of issuing, a quarter shows in a step of two: an eighth of it may go, half may be added."""
    hidden = step(TimeTerm("launch", 1.0, "", overlapped_s=0.75))
    assert machine_share(hidden) == pytest.approx(0.5)
    assert machine_share(hidden, below=True) == pytest.approx(0.125)
    assert time_scale(hidden, SURE, below=True) == pytest.approx((1 + (3.5 * 0.125) ** 2) ** 0.5)


def test_the_host_issues_the_update_too() -> None:
    """What it takes for an update counts like that of the passes, hidden or not."""
    assert machine_share(step(TimeTerm("update_launch", 1.0, "", overlapped_s=1.0))) == pytest.approx(0.5)


def test_times_scatter_by_kernels_and_machine() -> None:
    """1 for kernels, 3.5 times the share of the machine, 3.75 for a card that nobody names; five times as
    much where lengths are unknown.
    """
    hosted = step(TimeTerm("launch", 1.0, ""))
    assert time_scale(step(), SURE) == pytest.approx(1.0)
    assert time_scale(hosted, SURE) == pytest.approx((1 + 1.75**2) ** 0.5)
    assert time_scale(step(), replace(SURE, rates_unsourced=True)) == pytest.approx((1 + 3.75**2) ** 0.5)
    assert time_scale(step(), replace(SURE, lengths_unknown=True)) == pytest.approx(5.0)
    assert time_scale(step(), replace(SURE, n_unseen=200)) == pytest.approx(3.0)


def test_a_grid_has_the_scales_of_its_points() -> None:
    """Of peaks of 14, 16 and 64 GiB."""
    peaks = (14 * GIB, 16 * GIB, 64 * GIB)
    grid = memory_scale(replace(MEMORY, allocated_peak_bytes=np.array(peaks, dtype=float)), "allocated", SURE)
    points = [memory_scale(replace(MEMORY, allocated_peak_bytes=peak), "allocated", SURE) for peak in peaks]
    assert list(grid) == pytest.approx(points)
