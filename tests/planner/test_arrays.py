"""One formula for a number and for a grid: both ways give the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.arrays import (
    ceil_div,
    ceil_pow2,
    exp,
    is_zero,
    largest,
    log,
    maximum,
    mean,
    minimum,
    sqrt,
    where,
)

VALUES = [0.0, 0.5, 1.0, 3.0, 4.0, 5.0, 4096.0, 4097.0]


def test_the_largest_and_the_smallest_are_taken_element_by_element() -> None:
    """Numbers and arrays may be mixed, and one value alone is itself."""
    grid = np.array([1.0, 5.0])
    assert (maximum(2, 7, 3), minimum(2, 7, 3), maximum(4), minimum(4)) == (7, 2, 4, 4)
    assert list(maximum(grid, 3.0, 2.0)) == [3.0, 5.0]
    assert list(minimum(3.0, grid)) == [1.0, 3.0]
    assert maximum(grid) is grid


def test_powers_of_two_are_reached_from_below() -> None:
    """Nothing stays nothing, and what is one is left."""
    expected = [0, 1, 1, 4, 4, 8, 4096, 8192]
    assert [ceil_pow2(value) for value in VALUES] == expected
    assert list(ceil_pow2(np.array(VALUES))) == expected
    assert ceil_pow2(-3) == 0


@pytest.mark.parametrize(
    ("numerator", "denominator", "expected"), [(0, 8, 0), (1, 8, 1), (8, 8, 1), (9, 8, 2)]
)
def test_parts_are_rounded_up(numerator: int, denominator: int, expected: int) -> None:
    """As blocks and steps are."""
    assert ceil_div(numerator, denominator) == expected
    assert list(ceil_div(np.array([numerator]), denominator)) == [expected]


def test_a_choice_is_made_at_each_point() -> None:
    """A plain truth value gives back the one or the other as it is."""
    marker: object = object()
    assert where(True, marker, 1) is marker  # type: ignore[arg-type]
    assert list(where(np.array([True, False]), 1.0, 2.0)) == [1.0, 2.0]


def test_only_a_plain_zero_lets_a_sum_skip_a_term() -> None:
    """An array of zeros has a shape that the sum needs."""
    assert is_zero(0)
    assert is_zero(0.0)
    assert not is_zero(1e-300)
    assert not is_zero(np.zeros(2))


@pytest.mark.parametrize(("function", "plain"), [(exp, math.exp), (sqrt, math.sqrt), (log, math.log)])
def test_functions_are_those_of_single_numbers(function: object, plain: object) -> None:
    """To the last digits."""
    values = [0.25, 1.0, 7.0]
    expected = [plain(value) for value in values]  # type: ignore[operator]
    assert [function(value) for value in values] == expected  # type: ignore[operator]
    assert list(function(np.array(values))) == pytest.approx(expected, rel=1e-15)  # type: ignore[operator]


def test_one_number_stands_for_a_grid() -> None:
    """Its mean, or the largest of it."""
    grid = np.array([[1.0, 2.0], [3.0, 6.0]])
    assert (mean(2), largest(2), mean(grid), largest(grid)) == (2.0, 2.0, 3.0, 6.0)
