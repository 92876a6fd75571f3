"""Peaks of a card while a case runs, on a double of the driver's library."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from measure.run.readings import device_watch
from measure.run.readings.device_watch import DeviceWatch, device_watches
from measure.run.readings.nvml import Nvml, NvmlReadError
from planner.units import GIB, MIB
from tests.measure.driver_double import Driver


def test_a_driver_that_falls_silent_does_not_end_the_watch(driver: Driver) -> None:
    """The highest reading so far stays; asked directly, the failure has a name."""
    nvml = Nvml(driver)
    watch = DeviceWatch(nvml, 1)
    driver.used[1] = 9 * GIB
    watch.look([])
    driver.silent = True
    watch.look([])
    peaks = watch.peaks()
    assert (peaks.baseline_bytes, peaks.peak_bytes, peaks.other_processes) == (600 * MIB, 9 * GIB, 1)
    assert (peaks.held_before_bytes, peaks.process_peak_bytes) == (200 * MIB, None)
    assert peaks.throttle_reasons == ("software power cap",)
    with pytest.raises(NvmlReadError, match="does not say"):
        nvml.used_bytes(1)
    assert device_watches(nvml, [0, 1]) == []
    driver.silent = False
    assert [watch.peaks().index for watch in device_watches(nvml, [0, 1])] == [0, 1]
    driver.answers["nvmlDeviceGetHandleByIndex"] = driver._refuse
    assert (nvml.state(0), nvml.processes(0), nvml.held_bytes(0)) == ({}, None, None)


def test_what_a_case_before_still_gives_back_is_waited_for(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card is counted as empty when its figure falls no more."""
    monkeypatch.setattr(device_watch, "_SETTLE_STEP_S", 0.0)
    falling = iter([30 * GIB, 20 * GIB, 5 * GIB, 600 * MIB, 600 * MIB, 600 * MIB])
    driver.answers["nvmlDeviceGetMemoryInfo"] = lambda _handle, *_: SimpleNamespace(used=next(falling))
    assert DeviceWatch(Nvml(driver), 0).peaks().baseline_bytes == 600 * MIB


def test_memory_of_the_cases_own_processes_is_told_apart(driver: Driver) -> None:
    """Bytes by process id; ids of another table, as a container shows them, leave it unknown,
    which is not nothing.
    """
    watch = DeviceWatch(Nvml(driver), 0)
    running = [SimpleNamespace(pid=11, usedGpuMemory=3 * GIB), SimpleNamespace(pid=12, usedGpuMemory=2 * GIB)]
    driver.answers["nvmlDeviceGetComputeRunningProcesses"] = lambda _handle: running
    watch.look([99])
    assert watch.peaks().process_peak_bytes is None
    watch._next_state_s = 0.0
    watch.look([11, 12, 13])
    assert watch.peaks().process_peak_bytes == 5 * GIB
