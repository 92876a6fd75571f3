"""The search for the last value that runs."""

from __future__ import annotations

import pytest

from measure.run.cases.bisection import bisect


@pytest.mark.parametrize("boundary", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("start", [1, 4, 64])
def test_bisection_finds_the_last_that_runs(boundary: int, start: int) -> None:
    """Wherever it starts, neighbours on both sides of the boundary are found,
    in few probes and none twice.
    """
    asked: list[int] = []

    def runs(value: int) -> bool:
        asked.append(value)
        return value <= boundary

    assert bisect(runs, start, 1, 65_536) == (boundary, boundary + 1)
    assert len(asked) == len(set(asked)) <= 16


def test_bisection_at_the_ends() -> None:
    """Nothing runs, or everything up to the limit does; lengths are told apart to their step."""
    assert bisect(lambda _: False, 8, 1, 100) == (None, 1)
    assert bisect(lambda _: True, 8, 1, 100) == (100, None)
    assert bisect(lambda value: value <= 1000, 64, 64, 4096) == (960, 1024)
