"""One device while a case runs, as its driver describes it from outside of the case."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from measure.run.readings.nvml import Nvml, NvmlReadError
from planner.units import MIB

_STATE_PERIOD_S = 0.5
# A process that has just died gives its memory back a little later.
_SETTLE_S = 5.0
_SETTLE_STEP_S = 0.1
_SETTLED_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """Memory in use on one device as the driver says: before the case, and the highest while it ran.

    ``baseline_bytes`` and ``peak_bytes`` count everybody and what the driver keeps for itself,
    ``held_before_bytes`` what programs held before the case.  ``process_peak_bytes`` is that of the case's
    own processes.  ``None``: the driver does not say, as in a container that has process ids of its own.
    """

    index: int
    baseline_bytes: int
    peak_bytes: int
    held_before_bytes: int | None
    process_peak_bytes: int | None
    other_processes: int | None
    throttle_reasons: tuple[str, ...]


class DeviceWatch:
    """Reads one device before a case and while it runs."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        self._nvml, self._index = nvml, index
        self._baseline_bytes = self._peak_bytes = _settled_bytes(nvml, index)
        self._held_before_bytes = nvml.held_bytes(index)
        others = nvml.processes(index)
        self._others = None if others is None else len(others)
        self._process_bytes: int | None = None
        self._reasons: dict[str, None] = {}
        self._next_state_s = 0.0

    def look(self, pids: Collection[int]) -> None:
        """Read once; ``pids`` are the processes of the case."""
        before = self._peak_bytes
        # A reading that fails once is made up for by the next.
        with contextlib.suppress(NvmlReadError):
            self._peak_bytes = max(self._peak_bytes, self._nvml.used_bytes(self._index))
        state_is_due = time.monotonic() >= self._next_state_s
        if state_is_due:
            self._next_state_s = time.monotonic() + _STATE_PERIOD_S
            self._reasons.update(dict.fromkeys(self._nvml.throttle_reasons(self._index)))
        # Whose memory a new peak is: half a second later it may be gone.
        if state_is_due or self._peak_bytes > before:
            self._look_at_processes(pids)

    def _look_at_processes(self, pids: Collection[int]) -> None:
        running = self._nvml.processes(self._index) or {}
        own = [n_bytes for pid, n_bytes in running.items() if pid in pids and n_bytes is not None]
        if own:
            self._process_bytes = max(self._process_bytes or 0, sum(own))

    def peaks(self) -> DevicePeaks:
        """The highest values so far."""
        return DevicePeaks(
            self._index,
            self._baseline_bytes,
            self._peak_bytes,
            self._held_before_bytes,
            self._process_bytes,
            self._others,
            tuple(self._reasons),
        )


def _settled_bytes(nvml: Nvml, index: int) -> int:
    """Memory in use as soon as it falls no more: the case before this one may still be giving back."""
    used = nvml.used_bytes(index)
    end_s = time.monotonic() + _SETTLE_S
    while time.monotonic() < end_s:
        time.sleep(_SETTLE_STEP_S)
        now = nvml.used_bytes(index)
        if now >= used - _SETTLED_BYTES:
            return min(used, now)
        used = now
    return used


def device_watches(nvml: Nvml | None, devices: Sequence[int]) -> list[DeviceWatch]:
    """Those devices that the driver answers for; a case is measured without its figures where it does not."""
    found: list[DeviceWatch] = []
    if nvml is None:
        return found
    for index in devices:
        with contextlib.suppress(NvmlReadError):
            found.append(DeviceWatch(nvml, index))
    return found
