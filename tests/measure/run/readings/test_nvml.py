"""What the driver says, in its own words and on a double of its library."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import measure.run.readings.nvml
from measure.run.readings.machine import Machine
from measure.run.readings.nvml import Nvml, throttle_names
from planner.errors import UsageError
from planner.units import MIB
from tests.measure.driver_double import NAMES, Driver


def test_idle_clocks_are_no_throttling() -> None:
    """Bit 1 is idle; 4, 8 and the thermal ones are reasons."""
    assert throttle_names(0x1) == []
    assert throttle_names(0x4 | 0x40) == ["software power cap", "hardware thermal slowdown"]


def test_the_driver_is_asked_in_its_own_words(driver: Driver) -> None:
    """Every question exists in the installed binding; what a card does not answer is left out."""
    nvml = Nvml(driver)
    first, second = nvml.gpus()
    assert (first.index, first.name, first.memory_bytes, first.cuda_driver) == (
        0,
        "NVIDIA H200",
        143771 * MIB,
        "13.0",
    )
    assert first.uuid_hash != second.uuid_hash
    assert "aaaa" not in first.uuid_hash
    state = nvml.state(0)
    assert state["throttle_reasons"] == ["software power cap"]
    assert (state["ecc"], state["pcie_lanes"], state["sm_clock_mhz"]) == (True, 16, 1980)
    assert "power_mw" not in state
    assert nvml.processes(0) == {7: None}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("1", [1]),
        ("1,0", [1, 0]),
        ("GPU-bbbb", [1]),
        ("GPU", []),
        ("", []),
        ("-1", []),
        ("0,9,1", [0]),
        ("MIG-1", []),
    ],
)
def test_visible_devices_are_those_of_cuda(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, said: str, expected: list[int]
) -> None:
    """Indices and beginnings of UUIDs; the first name that is none of them ends the list, as in CUDA."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert [gpu.index for gpu in Nvml(driver).gpus()] == expected


def look(monkeypatch: pytest.MonkeyPatch, opened: tuple[Nvml | None, str], *files: Path) -> Any:
    """What is found on a machine with these device files."""
    monkeypatch.setattr(measure.run.readings.nvml, "_opened", lambda: opened)
    monkeypatch.setattr(measure.run.readings.nvml, "_DEVICE_FILES", files)
    return measure.run.readings.nvml.look_for_gpus()


def test_a_card_that_cannot_be_asked_is_not_taken_for_none(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the driver's binding, or with parts of a card (MIG),
    a job is refused with the reason and not run on the CPU.
    """
    assert look(monkeypatch, (None, "no binding"), tmp_path / "none") == (None, (), None)
    assert look(monkeypatch, (None, "no binding"), tmp_path)[2] == "a GPU seems to be here, but no binding"
    nvml = Nvml(driver)
    assert len(look(monkeypatch, (nvml, ""))[1]) == len(NAMES)
    driver.answers["nvmlDeviceGetMigMode"] = lambda _handle: [1, 1]
    _, gpus, unusable = look(monkeypatch, (nvml, ""))
    assert gpus == ()
    assert "divided in parts" in unusable
    here = Machine(nvml, gpus, None, {}, unusable)
    with pytest.raises(UsageError, match=r"MIG.*--gpu cpu"):
        here.place({"model": "qwen2.5-0.5b"})
    assert here.place({"gpu": "cpu"})["gpu"] == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    assert "part of a card" in look(monkeypatch, (nvml, ""))[2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert look(monkeypatch, (nvml, "")) == (nvml, (), None)
    driver.answers["nvmlDeviceGetCount"] = lambda: driver._refuse(0)
    assert "does not describe its GPUs" in look(monkeypatch, (nvml, ""))[2]


@pytest.mark.parametrize("openings", [0, 1, 7])
def test_the_warm_parent_hands_no_connection_on(monkeypatch: pytest.MonkeyPatch, openings: int) -> None:
    """Every opening is closed, none too often; a library that is not loaded is not loaded for this.

    The library counts openings, and closing what is closed is no error.
    """
    left = ["opening"] * openings
    closed: list[str] = []
    library = SimpleNamespace(
        nvmlDeviceGetCount_v2=lambda _count: 0 if left else 1,
        nvmlShutdown=lambda: closed.append(left.pop() if left else "too often"),
    )

    def loaded(name: str, mode: int) -> Any:
        assert (name, mode) == ("libnvidia-ml.so.1", os.RTLD_NOLOAD)
        return library

    monkeypatch.setattr(measure.run.readings.nvml.ctypes, "CDLL", loaded)
    measure.run.readings.nvml.forget_nvml()
    assert closed == ["opening"] * openings
