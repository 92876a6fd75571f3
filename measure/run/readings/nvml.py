"""What the driver says about the GPUs of this machine.  Everything is optional:
without a driver there are no GPUs here.

Checked against nvidia-ml-py 13.615 (``pynvml.py``) and the NVML API reference.  A connection belongs to the
process that opened it: one that a fork inherited answers with errors (NVIDIA/cuCascade pull request 138).
So the warm parent closes its own before it forks (:func:`forget_nvml`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HASH_DIGITS = 12
_UUID_PREFIX = "GPU-"
_LIBRARY = "libnvidia-ml.so.1"
_UNINITIALIZED = 1  # NVML_ERROR_UNINITIALIZED of nvml.h
_MOST_OPENINGS = 1000
# What a machine with NVIDIA's driver has: on Linux, and under Windows' subsystem for Linux.
_DEVICE_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as the driver describes it.  The UUID is kept as a hash: it names a machine,
    which is nobody's business.
    """

    index: int
    name: str
    uuid_hash: str
    memory_bytes: int
    driver: str
    cuda_driver: str


class NvmlReadError(OSError):
    """The driver did not answer a question that it usually answers."""


class Nvml:
    """An open connection to the driver's library."""

    def __init__(self, library: Any) -> None:
        self._nvml = library

    def gpus(self) -> tuple[Gpu, ...]:
        """The devices that CUDA programs of this process would see, in their order.

        Raises:
            NvmlReadError: the driver does not describe them.
        """
        try:
            return self._gpus()
        except self._nvml.NVMLError as error:
            raise NvmlReadError(f"the driver does not describe its GPUs: {error}") from None

    def _gpus(self) -> tuple[Gpu, ...]:
        n = self._nvml
        version = n.nvmlSystemGetCudaDriverVersion()
        found = []
        for index in self._visible(n.nvmlDeviceGetCount()):
            handle = n.nvmlDeviceGetHandleByIndex(index)
            found.append(
                Gpu(
                    index=index,
                    name=_text(n.nvmlDeviceGetName(handle)),
                    uuid_hash=hashlib.sha256(_text(n.nvmlDeviceGetUUID(handle)).encode()).hexdigest()[
                        :_HASH_DIGITS
                    ],
                    memory_bytes=int(n.nvmlDeviceGetMemoryInfo(handle).total),
                    driver=_text(n.nvmlSystemGetDriverVersion()),
                    cuda_driver=f"{version // 1000}.{version % 1000 // 10}",
                )
            )
        return tuple(found)

    def used_bytes(self, index: int) -> int:
        """Memory in use on one device, by everybody.

        Raises:
            NvmlReadError: the driver does not say.
        """
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._nvml.nvmlDeviceGetHandleByIndex(index)).used)
        except self._nvml.NVMLError as error:
            raise NvmlReadError(
                f"the driver does not say how much memory GPU {index} uses: {error}"
            ) from None

    def held_bytes(self, index: int) -> int | None:
        """Memory that programs hold on one device, without what the driver keeps for itself;
        ``None`` where it is not told apart.

        Source: nvml.h nvmlMemory_v2_t, since driver 510; the older question counts both together.
        """
        n = self._nvml
        try:
            return int(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(index), n.nvmlMemory_v2).used)
        except (n.NVMLError, AttributeError):
            return None

    def processes(self, index: int) -> dict[int, int | None] | None:
        """Process ids with compute contexts on one device, and their bytes where the driver says them;
        ``None``: it says nothing.

        Inside a container these can be ids of the host's process table, or none at all.
        """
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._nvml.NVMLError:
            return None
        return {int(each.pid): each.usedGpuMemory for each in running}

    def throttle_reasons(self, index: int) -> tuple[str, ...]:
        """Why the clocks of one device are low at this moment; nothing where the driver does not say."""
        n = self._nvml
        try:
            return tuple(throttle_names(_clock_event_bits(n, n.nvmlDeviceGetHandleByIndex(index))))
        except (n.NVMLError, AttributeError):
            return ()

    def state(self, index: int) -> Mapping[str, Any]:
        """Clocks, temperature, power and throttle reasons of this moment;
        what this driver lacks is left out.
        """
        n = self._nvml
        try:
            handle = n.nvmlDeviceGetHandleByIndex(index)
        except n.NVMLError:
            return {}
        questions: dict[str, Callable[[], Any]] = {
            "sm_clock_mhz": lambda: n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_MEM),
            "sm_clock_max_mhz": lambda: n.nvmlDeviceGetMaxClockInfo(handle, n.NVML_CLOCK_SM),
            "temperature_c": lambda: n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU),
            "power_mw": lambda: n.nvmlDeviceGetPowerUsage(handle),
            "power_limit_mw": lambda: n.nvmlDeviceGetEnforcedPowerLimit(handle),
            "power_limit_default_mw": lambda: n.nvmlDeviceGetPowerManagementDefaultLimit(handle),
            "pcie_generation": lambda: n.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            "pcie_lanes": lambda: n.nvmlDeviceGetCurrPcieLinkWidth(handle),
            "ecc": lambda: bool(n.nvmlDeviceGetEccMode(handle)[0]),
            "mig": lambda: bool(n.nvmlDeviceGetMigMode(handle)[0]),
            "throttle_reasons": lambda: throttle_names(_clock_event_bits(n, handle)),
        }
        known: dict[str, Any] = {}
        for name, ask in questions.items():
            try:
                known[name] = ask()
            except (n.NVMLError, AttributeError):
                continue
        return known

    def _visible(self, count: int) -> list[int]:
        """The driver's indices of the devices that CUDA_VISIBLE_DEVICES lets through; as in CUDA,
        the first bad name ends it.

        Names are indices or unique beginnings of UUIDs.
        """
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        if given is None:
            return list(range(count))
        indices: list[int] = []
        for part in (text.strip() for text in given.split(",")):
            index = (
                self._index_of_uuid(part, count)
                if part.startswith(_UUID_PREFIX)
                else int(part)
                if part.isdigit()
                else None
            )
            if index is None or index >= count:
                break
            indices.append(index)
        return indices

    def _index_of_uuid(self, beginning: str, count: int) -> int | None:
        n = self._nvml
        uuids = [_text(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(index))) for index in range(count)]
        found = [index for index, uuid in enumerate(uuids) if uuid.startswith(beginning)]
        return found[0] if len(found) == 1 else None


def _clock_event_bits(library: Any, handle: Any) -> int:
    """Why clocks are low; the question has a new name since driver 535,
    and older bindings know the old one only.
    """
    ask = (
        getattr(library, "nvmlDeviceGetCurrentClocksEventReasons", None)
        or library.nvmlDeviceGetCurrentClocksThrottleReasons
    )
    return int(ask(handle))


POWER_CAP = "software power cap"
# Bits of nvmlClocksEventReasons (nvml.h); "idle" and "applications clocks" are no throttling.
_REASONS = {
    0x4: POWER_CAP,
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def throttle_names(bits: int) -> list[str]:
    """Reasons for lowered clocks by name, those that mean throttling only."""
    return [name for bit, name in _REASONS.items() if bits & bit]


def open_nvml() -> Nvml | None:
    """The driver's library, or ``None`` where there is no driver or its Python binding is not installed."""
    return _opened()[0]


def _opened() -> tuple[Nvml | None, str]:
    """The driver's library, or why there is none."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return None, "nvidia-ml-py, which asks it, is not installed (pip install nvidia-ml-py)"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"the driver's library does not answer ({error}); nvidia-smi says more"
    return Nvml(pynvml), ""


def look_for_gpus() -> tuple[Nvml | None, tuple[Gpu, ...], str | None]:
    """The driver's library, the cards that are visible, and why those that are here cannot be used,
    where that is so.

    A card that cannot be asked is an error, not a machine without a card: a run on the CPU would be taken for
    one on the card.
    """
    nvml, reason = _opened()
    if nvml is None:
        return (
            None,
            (),
            f"a GPU seems to be here, but {reason}" if any(map(Path.exists, _DEVICE_FILES)) else None,
        )
    try:
        gpus = nvml.gpus()
    except NvmlReadError as error:
        return None, (), f"{error}; nvidia-smi says more"
    if os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
        return (
            nvml,
            (),
            (
                "CUDA_VISIBLE_DEVICES names a part of a card (MIG), which is not measured: make a whole "
                "card visible"
            ),
        )
    if any(nvml.state(gpu.index).get("mig") for gpu in gpus):
        return (
            nvml,
            (),
            (
                "a GPU here is divided in parts (MIG), which are not measured: the machine's owner can "
                "make it whole"
            ),
        )
    return nvml, gpus, None


def forget_nvml() -> None:
    """Close every connection of this process to the driver's library, whoever opened it,
    so that forks inherit none.

    torch opens one each time that it counts devices and never closes it (2.13 cuda/__init__.py
    _raw_device_count_nvml).  A library that is not loaded is left alone.
    """
    try:
        library = ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD)
    except OSError:
        return
    count = ctypes.c_uint()
    for _ in range(_MOST_OPENINGS):
        # Closing what is closed is no error (NVML API reference, nvmlShutdown): only another question tells.
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == _UNINITIALIZED:
            return
        library.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
