"""A double of the driver's library with two cards; a question that the binding lacks fails the test."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from measure.run.readings.environment import collect_environment
from measure.run.readings.machine import Machine
from measure.run.readings.nvml import Nvml
from planner.units import MIB
from tests.extras import import_or_skip

NAMES = ("GPU-aaaa-1", "GPU-bbbb-2")


class Driver:
    """Answers of two H200 cards, under the names of the driver's binding;
    a question that the binding lacks fails the test.
    """

    def __init__(self) -> None:
        self.used = [500 * MIB, 600 * MIB]
        self.silent = False
        # Only a test that uses it is skipped where the binding is missing.
        self.binding = import_or_skip("pynvml")
        self.answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetCount": lambda: len(NAMES),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda handle: NAMES[handle],
            "nvmlDeviceGetName": lambda _handle: b"NVIDIA H200",
            "nvmlSystemGetDriverVersion": lambda: "580.159.04",
            "nvmlSystemGetCudaDriverVersion": lambda: 13000,
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetComputeRunningProcesses": lambda _handle: [
                SimpleNamespace(pid=7, usedGpuMemory=None)
            ],
            "nvmlDeviceGetClockInfo": lambda _handle, _kind: 1980,
            "nvmlDeviceGetMaxClockInfo": lambda _handle, _kind: 1980,
            "nvmlDeviceGetTemperature": lambda _handle, _sensor: 40,
            "nvmlDeviceGetPowerUsage": self._refuse,
            "nvmlDeviceGetEnforcedPowerLimit": lambda _handle: 700_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda _handle: 700_000,
            "nvmlDeviceGetMigMode": self._refuse,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda _handle: 5,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda _handle: 16,
            "nvmlDeviceGetEccMode": lambda _handle: [1, 1],
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _handle: 0x4 | 0x1,
        }

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.binding, name)
        return self.answers[name] if name.startswith("nvml") and callable(real) else real

    def _memory(self, handle: int, version: int | None = None) -> Any:
        if self.silent:
            raise self.binding.NVMLError(self.binding.NVML_ERROR_UNKNOWN)
        kept = 0 if version is None else 400 * MIB
        return SimpleNamespace(total=143771 * MIB, used=self.used[handle] - kept, free=0)

    def _refuse(self, _handle: int) -> int:
        raise self.binding.NVMLError(self.binding.NVML_ERROR_NOT_SUPPORTED)


def machine(driver: Driver) -> Machine:
    """A machine with the two cards."""
    import_or_skip("psutil")
    nvml = Nvml(driver)
    gpus = nvml.gpus()
    return Machine(nvml, gpus, "h200-sxm", collect_environment(nvml, gpus))
