"""What readings mean: a full card, a slowed one."""

from __future__ import annotations

import pytest

from measure.run.evidence import _filled_bytes, _throttled
from measure.run.readings.device_watch import DevicePeaks
from measure.run.readings.nvml import POWER_CAP
from planner.units import GIB, MIB


@pytest.mark.parametrize(
    ("held_bytes", "limited", "filled_bytes"),
    [
        (100 * MIB, False, 20 * GIB - 400 * MIB),
        (None, False, 20 * GIB),
        (100 * MIB, True, 20 * GIB - 500 * MIB),
    ],
)
def test_what_the_driver_keeps_fills_no_card(
    held_bytes: int | None, limited: bool, filled_bytes: int
) -> None:
    """The card's size is what CUDA makes visible, without the driver's own part;
    a limit is about what a run adds.
    """
    device = DevicePeaks(0, 500 * MIB, 20 * GIB, held_bytes, None, None, ())
    assert _filled_bytes(device, limited=limited) == filled_bytes


def test_a_power_limit_is_that_of_its_own_card() -> None:
    """A card that keeps to the limit it was sold with is not slowed; states belong to devices by index,
    not place.
    """
    states = [
        {"index": index, "power_limit_mw": 700, "power_limit_default_mw": sold_mw}
        for index, sold_mw in ((0, 700), (1, 900), (2, 700))
    ]
    for watched, reasons in ((1, (POWER_CAP,)), (2, ())):
        device = DevicePeaks(watched, 0, 0, None, None, None, (POWER_CAP,))
        assert _throttled((device,), {"gpu_state": states}) == reasons
    assert _throttled((DevicePeaks(0, 0, 0, None, None, None, (POWER_CAP,)),), {}) == (POWER_CAP,)
