"""Numbers of stacks at the bounds of what they may be: files of DeepSpeed hold zeros and 1e12s."""

from __future__ import annotations

import pytest

from planner.catalog import stacks
from planner.errors import NotModelledError, UsageError
from planner.predicting import estimate
from tests.jobs import resolved

NUMBERS = {name: bounds for name, bounds in stacks._RANGES.items() if name in stacks.SWITCH_NAMES}
ENGINES = [
    ("zero3", "optimizer+params"),
    ("zero3", "optimizer-nvme"),
    ("zero2", "optimizer"),
    ("zero3", "none"),
]


@pytest.mark.parametrize("engine", ENGINES, ids="-".join)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_at_their_bounds_are_answered(name: str, engine: tuple[str, str]) -> None:
    """The least, none, one and the most: a prediction with finite bytes, or a sentence.

    A bucket of 1e12 elements takes its 4e12 bytes.
    """
    least, most = NUMBERS[name]
    flags = {"model": "qwen2.5-0.5b", "gpu": "h100-sxm:2", "seq": 512, "method": "full"}
    answered = 0
    for number in {least, 0, 1, most} - ({0} if least > 0 else set()):
        said = {**flags, "sharding": engine[0], "offload": engine[1], "switches": f"{name}={number}"}
        try:
            made = estimate(resolved(said))
        except (NotModelledError, UsageError):
            continue
        assert 0 < float(made.memory.driver_peak_bytes) < 1e13
        assert made.host is not None
        assert 0 < float(made.host.per_node_bytes) < 1e12
        answered += 1
    assert answered > 0
