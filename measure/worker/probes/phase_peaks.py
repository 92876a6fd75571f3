"""Which phase a run is in, and the memory of each."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from measure.run.protocol import Reporter
from measure.worker.probes.device_memory import DeviceProbe, Levels
from planner.domain.term import Phase

# The driver is asked in the first steps only, where its share still grows;
# later the question would cost time.
_VISITS_WITH_DRIVER = 3
_LATER: dict[Phase, Phase] = {"forward": "forward_2", "loss": "loss_2", "backward": "backward_2"}


@dataclass(slots=True)
class _Reading:
    """Peaks of one phase over all its visits; ``end`` values are those of the last visit."""

    visits: int = 0
    wall_s: float = 0.0
    allocated_end_bytes: int | None = None
    allocated_peak_bytes: int | None = None
    reserved_end_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    device_used_bytes: int | None = None
    host_rss_bytes: int = 0

    def add(self, levels: Levels, wall_s: float, rss_bytes: int) -> None:
        self.visits += 1
        self.wall_s += wall_s
        self.allocated_end_bytes = levels.allocated_bytes
        self.reserved_end_bytes = levels.reserved_bytes
        self.allocated_peak_bytes = _highest(self.allocated_peak_bytes, levels.allocated_peak_bytes)
        self.reserved_peak_bytes = _highest(self.reserved_peak_bytes, levels.reserved_peak_bytes)
        self.device_used_bytes = _highest(self.device_used_bytes, levels.device_used_bytes)
        self.host_rss_bytes = max(self.host_rss_bytes, rss_bytes)


class PhaseRecorder:
    """Follows one run through its phases.

    The first micro-step has ``forward``, ``loss`` and ``backward``; every later one has the same with ``_2``,
    because optimizer states exist then, and with accumulation gradients too.
    ``loss_goes_back``: ``backward`` begins by itself, behind that of the loss.
    """

    def __init__(self, probe: DeviceProbe, reporter: Reporter) -> None:
        self._probe, self._reporter = probe, reporter
        self._readings: dict[Phase, _Reading] = {}
        self._phase: Phase | None = None
        self._entered_s = 0.0
        self._process = psutil.Process()
        self._first_backward_over = False
        self.loss_goes_back = False
        self.marks: list[tuple[int, str]] = []

    @property
    def phase(self) -> Phase | None:
        """The phase that runs."""
        return self._phase

    def enter(self, phase: Phase) -> None:
        """The phase before ends and ``phase`` begins; entering the one that runs changes nothing."""
        named = _LATER.get(phase, phase) if self._first_backward_over else phase
        if named == self._phase:
            return
        self.leave()
        self._phase, self._entered_s = named, time.perf_counter()
        # The allocator's history counts microseconds of the system's clock.
        self.marks.append((time.time_ns() // 1000, named))
        if named not in self._readings:
            self._readings[named] = _Reading()
            self._reporter.say("phase", phase=named)

    def leave(self) -> None:
        """The phase that runs ends."""
        if self._phase is None:
            return
        reading = self._readings[self._phase]
        levels = self._probe.levels(with_driver=reading.visits < _VISITS_WITH_DRIVER)
        reading.add(levels, time.perf_counter() - self._entered_s, self._process.memory_info().rss)
        self._probe.reset_peaks()
        if self._phase == "backward":
            self._first_backward_over = True
        self._phase = None

    def say_readings(self, **more: Any) -> None:
        """Write the peaks of all phases and the allocator's counters."""
        self.leave()
        phases = [{"phase": phase, **asdict(reading)} for phase, reading in self._readings.items()]
        self._reporter.say("readings", phases=phases, counters=asdict(self._probe.counters()), **more)


def _highest(first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return second if first is None else first
    return max(first, second)
