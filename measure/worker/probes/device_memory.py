"""Readings of the device that a worker runs on.  A CPU has no allocator statistics:
there the readings are None, never zero.
"""

# ruff: noqa: SLF001 - torch has no public name for the allocator's history

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from measure.run.readings.nvml import Gpu, Nvml, NvmlReadError, open_nvml
from planner.allocator.documents.history_file import MAX_ENTRIES, PhaseMarks, pack_history


@dataclass(frozen=True, slots=True)
class Levels:
    """Bytes at one moment and the highest since the last reset;
    ``None`` where the device has no such figure.
    """

    allocated_bytes: int | None = None
    allocated_peak_bytes: int | None = None
    reserved_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    device_used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """What the allocator counted over the whole run."""

    retries: int | None = None
    out_of_memory: int | None = None
    pinned_peak_bytes: int | None = None


class DeviceProbe(Protocol):
    """One device as seen from the worker."""

    @property
    def device(self) -> torch.device:
        """Where tensors go."""

    def levels(self, *, with_driver: bool) -> Levels:
        """Readings now; ``with_driver`` asks the driver too, which takes longer."""

    def reset_peaks(self) -> None:
        """Start a new interval."""

    def cap(self, limit_bytes: int) -> dict[str, Any]:
        """Limit the memory of this process to ``limit_bytes``, and say how that is done."""

    def start_history(self) -> None:
        """Keep every event of the allocator from here on."""

    def stop_history(self, phase_marks: PhaseMarks) -> bytes | None:
        """What was kept as a compressed file, once; ``None`` afterwards and where nothing was kept."""

    @property
    def context_bytes(self) -> int | None:
        """What the process held on the device before its first tensor; ``None`` where that is not known."""

    def counters(self) -> Counters:
        """Counts since the start."""

    def start_clock(self) -> None:
        """A step begins."""

    def stop_clock(self) -> tuple[float, float | None]:
        """A step is over, and all of its work:
        seconds on the wall clock and between two events on the device.
        """


class CpuProbe:
    """No device: wall times only."""

    def __init__(self) -> None:
        self._start_s = 0.0

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def levels(self, *, with_driver: bool) -> Levels:  # noqa: ARG002
        """Nothing: torch's CPU allocator keeps no count."""
        return Levels()

    def reset_peaks(self) -> None:
        """Nothing to reset."""

    def cap(self, limit_bytes: int) -> dict[str, Any]:
        """Private memory of the process, as the kernel counts it:
        what was allocated before this counts too.
        """
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
        return {"kind": "rlimit_data", "limit_bytes": limit_bytes}

    def start_history(self) -> None:
        """There is none: torch's CPU allocator keeps no events."""

    def stop_history(self, phase_marks: PhaseMarks) -> bytes | None:  # noqa: ARG002
        """Nothing was kept."""
        return None

    @property
    def context_bytes(self) -> int | None:
        """There is no device."""
        return None

    def counters(self) -> Counters:
        """Nothing is counted."""
        return Counters()

    def start_clock(self) -> None:
        """A step begins."""
        self._start_s = time.perf_counter()

    def stop_clock(self) -> tuple[float, float | None]:
        """Wall seconds since :meth:`start_clock`."""
        return time.perf_counter() - self._start_s, None


class CudaProbe:
    """One CUDA device, by torch's allocator and the driver."""

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self._keeps_history = False
        self._nvml, self._nvml_index = open_nvml(), index
        if self._nvml is not None:
            seen = _gpus(self._nvml)
            # Where the driver and CUDA disagree about what is here,
            # the driver's figures would be those of another card.
            if index < len(seen):
                self._nvml_index = seen[index].index
            else:
                self._nvml = None
        self._used_before_bytes = self._used_bytes()
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_device(self._device)
        # A context is opened by the first thing that needs one.
        torch.cuda.synchronize(self._device)
        self._context_bytes = self._outside_bytes()
        self._start_s = 0.0
        self._begin: torch.cuda.Event | None = None

    @property
    def device(self) -> torch.device:
        """The device."""
        return self._device

    def levels(self, *, with_driver: bool) -> Levels:
        """The allocator's figures; the driver's are those of the whole device."""
        used = None
        if with_driver:
            free, total = torch.cuda.mem_get_info(self._device)
            used = total - free
        # One question instead of four that each flatten all that there is:
        # it is asked several times in every step.
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        return Levels(
            allocated_bytes=allocated["current"],
            allocated_peak_bytes=allocated["peak"],
            reserved_bytes=reserved["current"],
            reserved_peak_bytes=reserved["peak"],
            device_used_bytes=used,
        )

    @property
    def context_bytes(self) -> int | None:
        """Device memory that opening CUDA took, by the driver."""
        return self._context_bytes

    def cap(self, limit_bytes: int) -> dict[str, Any]:
        """Let torch's allocator have ``limit_bytes`` less what this process holds outside of it.

        Kernels of matrix products are loaded first, because every job loads them.

        Raises:
            ValueError: the context alone is larger than the limit.
        """
        load_kernels(self._device)
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        outside = self._outside_bytes()
        if outside is None:
            free, total = torch.cuda.mem_get_info(self._device)
            outside = total - free - torch.cuda.memory_reserved(self._device)
        allowed = limit_bytes - outside
        total_bytes = torch.cuda.get_device_properties(self._device).total_memory
        if allowed <= 0:
            raise ValueError(
                f"the CUDA context takes {outside} bytes, which leaves nothing of the limit of {limit_bytes}"
            )
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total_bytes), self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return {
            "kind": "cuda_memory_fraction",
            "limit_bytes": limit_bytes,
            "outside_bytes": outside,
            "allowed_bytes": min(allowed, total_bytes),
        }

    def start_history(self) -> None:
        """Keep every event, without stacks, which would cost time and memory."""
        # "python": with C++ stacks torch first reads the unwinding tables of every library,
        # although it will keep no stack.
        torch.cuda.memory._record_memory_history(
            enabled="all", context=None, stacks="python", max_entries=MAX_ENTRIES
        )
        self._keeps_history = True

    def stop_history(self, phase_marks: PhaseMarks) -> bytes | None:
        """The events so far; nothing is kept from here on."""
        if not self._keeps_history:
            return None
        self._keeps_history = False
        torch.cuda.synchronize(self._device)
        snapshot = torch.cuda.memory._snapshot(self._device)
        torch.cuda.memory._record_memory_history(enabled=None)
        return pack_history(snapshot, self._device.index, phase_marks)

    def _used_bytes(self) -> int | None:
        try:
            return None if self._nvml is None else self._nvml.used_bytes(self._nvml_index)
        except NvmlReadError:
            return None

    def _outside_bytes(self) -> int | None:
        """Device memory of this process outside of torch's allocator: what was added since the start,
        less what is reserved.
        """
        now, before = self._used_bytes(), self._used_before_bytes
        if now is None or before is None:
            return None
        return max(0, now - before - torch.cuda.memory_reserved(self._device))

    def reset_peaks(self) -> None:
        """Start a new interval of the allocator's peaks."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def counters(self) -> Counters:
        """Retries and failures of the allocator, and page-locked host memory where this torch counts it."""
        stats = torch.cuda.memory_stats(self._device)
        pinned = None
        if hasattr(torch.cuda, "host_memory_stats"):
            pinned = torch.cuda.host_memory_stats().get("allocated_bytes.peak")
        return Counters(
            retries=int(stats.get("num_alloc_retries", 0)),
            out_of_memory=int(stats.get("num_ooms", 0)),
            pinned_peak_bytes=None if pinned is None else int(pinned),
        )

    def start_clock(self) -> None:
        """A step begins."""
        self._begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._start_s = time.perf_counter()
        self._begin.record()

    def stop_clock(self) -> tuple[float, float | None]:
        """Wait for the device, as the Trainer does once a step when it looks at the loss."""
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end.record()
        torch.cuda.synchronize(self._device)
        wall_s = time.perf_counter() - self._start_s
        milliseconds = self._begin.elapsed_time(end) if self._begin is not None else 0.0
        return wall_s, milliseconds / 1000


def _gpus(nvml: Nvml) -> tuple[Gpu, ...]:
    try:
        return nvml.gpus()
    except NvmlReadError:
        return ()


def load_kernels(device: torch.device) -> None:
    """Run a matrix product and its backward pass,
    which loads the kernels and the workspace that every job has.
    """
    warm = torch.ones((256, 256), dtype=torch.float16, device=device, requires_grad=True)
    (warm @ warm).sum().backward()  # type: ignore[no-untyped-call]


def open_device(wants_cuda: bool, local_rank: int) -> DeviceProbe:
    """The device of this rank.

    Raises:
        RuntimeError: CUDA is wanted and cannot be had.
    """
    if not wants_cuda:
        return CpuProbe()
    return CudaProbe(local_rank)
