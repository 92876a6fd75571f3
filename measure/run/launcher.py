"""Runs one case in a process of its own, watches it from outside, and says how it ended.
Survives whatever the case does.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from measure.run.cases.builds import remove_abandoned_locks
from measure.run.cases.case import CPU, RunCase, case_key
from measure.run.cases.case_folder import case_folder, remove_abandoned_folders
from measure.run.processes import Child, Zygote, ZygoteError, kill_group, spawn, spawn_ranks
from measure.run.protocol import HISTORY_FILE, JOB_FILE, LOG_FILE, EventReader, events_file, write_whole
from measure.run.readings.device_watch import DevicePeaks, DeviceWatch, device_watches
from measure.run.readings.host_memory import HostPeaks, HostSampler, cgroup_kills
from measure.run.readings.nvml import Nvml
from planner.domain.run_record import Outcome

_INTERVAL_S = 0.05
_MAX_LOG_CHARS = 500
# A worker that was forked has torch already and opens its device in seconds;
# one that inherited a lock never does.
_OPENING_S = 120.0
# How a worker ends that somebody else ended: an operator, a guard of the machine's memory, the kernel.
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunResult:
    """How one case went.  ``events`` are those of each rank; ``killed``:
    by a signal that nobody here sent, not for memory.
    """

    outcome: Outcome
    phase: str | None
    message: str | None
    events: tuple[tuple[Event, ...], ...]
    host: HostPeaks
    devices: tuple[DevicePeaks, ...]
    started_s: float
    duration_s: float
    how: str
    history: bytes | None = None
    killed: bool = False


class Launcher:
    """Starts cases one after the other; holds the zygote while it is open."""

    def __init__(self, nvml: Nvml | None = None) -> None:
        self._nvml = nvml
        self._zygote: Zygote | None = None
        self._may_fork = True

    def __enter__(self) -> Self:
        remove_abandoned_folders()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the zygote, and with it what it started."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the zygote says about torch and its devices.

        Raises:
            ZygoteError: it cannot be started.
        """
        return self._warm().facts

    def warm_up(self) -> float:
        """Start the zygote, which imports what every case needs; returns how many seconds that took.

        Raises:
            ZygoteError: it cannot be started.
        """
        start_s = time.monotonic()
        self._warm()
        return time.monotonic() - start_s

    def run(
        self, case: RunCase, *, ranks: int = 1, devices: Sequence[int] = (), end_s: float | None = None
    ) -> RunResult:
        """Run ``case`` to its end, its timeout or its death; once more where somebody killed it.

        Args:
            case: what to run.
            ranks: processes on this machine.
            devices: GPUs to watch, by the driver's index.
            end_s: when it must be over, whatever its timeout, by the monotonic clock.
        """
        case = _within(case, end_s)
        run = self._run_or_spawn(case, ranks, devices)
        # One node of several would wait for the others, which have gone.
        if not run.killed or int(case.values.get("nodes", 1)) > 1:
            return run
        again = self._run_or_spawn(_within(case, end_s), ranks, devices)
        return replace(again, message=f"twice: {again.message}") if again.killed else again

    def _run_or_spawn(self, case: RunCase, ranks: int, devices: Sequence[int]) -> RunResult:
        """Run ``case``, as a process of its own where one that was forked did not come to its device."""
        run = self._run_once(case, ranks, devices)
        on_gpu = case.values.get("gpu") != CPU
        crashed = run.outcome == "crash" and not run.killed
        if on_gpu and run.how == "fork" and crashed and not _has_opened_device(run.events):
            # Something that the parent did, such as looking for a device without NVML,
            # may keep its children from opening one.
            spawned = self._run_once(case, ranks, devices, may_fork=False)
            self._may_fork = not _has_opened_device(spawned.events)
            return spawned
        return run

    def _run_once(
        self, case: RunCase, ranks: int, devices: Sequence[int], *, may_fork: bool = True
    ) -> RunResult:
        with case_folder() as folder:
            write_whole(folder / JOB_FILE, json.dumps(case.to_json()))
            return self._watch(case, folder, ranks, devices, may_fork and self._may_fork)

    def _watch(
        self, case: RunCase, folder: Path, ranks: int, devices: Sequence[int], may_fork: bool
    ) -> RunResult:
        watch = _Watch(folder, ranks, device_watches(self._nvml, devices))
        kills_before = cgroup_kills()
        child, how = self._start(case, folder, ranks, may_fork)
        # Not before: the warm parent may have had to be started first, which is no part of the case.
        started_s, start_s = time.time(), time.monotonic()
        timed_out = given_up = False
        try:
            while (status := child.status()) is None:
                watch.look(child.pid)
                running_s = time.monotonic() - start_s
                timed_out = running_s > case.options.timeout_s
                given_up = given_up or (
                    how == "fork" and running_s > _OPENING_S and not _has_opened_device(watch.events)
                )
                if timed_out or given_up:
                    kill_group(child.pid)
                time.sleep(_INTERVAL_S)
        except ZygoteError:
            # Whoever killed the warm parent killed the child with it; the next case gets a new one.
            self.close()
            status = -signal.SIGKILL
        finally:
            kill_group(child.pid)
        watch.look(child.pid)
        killed_for_memory = (cgroup_kills() or 0) > (kills_before or 0)
        end = _End(status, timed_out, killed_for_memory, folder / LOG_FILE, given_up)
        outcome, message = _verdict(watch.events, end, case)
        return RunResult(
            outcome=outcome,
            phase=watch.phase,
            message=message,
            events=tuple(tuple(events) for events in watch.events),
            host=watch.host.peaks(),
            devices=tuple(device.peaks() for device in watch.devices),
            started_s=started_s,
            duration_s=time.monotonic() - start_s,
            how=how,
            history=_read_if_there(folder / HISTORY_FILE),
            killed=outcome == "crash" and end.from_outside,
        )

    def _start(self, case: RunCase, folder: Path, ranks: int, may_fork: bool) -> tuple[Child, str]:
        scenario = case.scenario()
        if scenario.recipe.sharding.communicates:
            if scenario.recipe.uses_deepspeed:
                remove_abandoned_locks()
            # DeepSpeed looks for an accelerator of its own; on a CPU two ranks share the cores.
            apart = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            on_cpu = apart if case.values.get("gpu") == CPU else {}
            meeting = (
                f"{case.options.rendezvous}/{case_key(case, scenario)}" if scenario.hardware.nodes > 1 else ""
            )
            return spawn_ranks(
                folder, ranks, on_cpu, nodes=scenario.hardware.nodes, meeting=meeting
            ), "torchrun"
        zygote = self._warm()
        return (zygote.fork(folder), "fork") if may_fork and zygote.can_fork else (spawn(folder), "spawn")

    def _warm(self) -> Zygote:
        if self._zygote is not None and not self._zygote.alive:
            self.close()
        if self._zygote is None:
            self._zygote = Zygote()
            if self._zygote.facts["cuda_initialized"]:
                # Something that it imported to save time opened the device.
                self._zygote.close()
                self._zygote = Zygote(only_needed=True)
        return self._zygote


def _within(case: RunCase, end_s: float | None) -> RunCase:
    """``case`` with a timeout that ends it at ``end_s`` at the latest."""
    left_s = case.options.timeout_s if end_s is None else max(0.0, end_s - time.monotonic())
    return (
        case
        if left_s >= case.options.timeout_s
        else replace(case, options=replace(case.options, timeout_s=left_s))
    )


def _has_opened_device(events: Sequence[Sequence[Event]]) -> bool:
    """Whether the worker came as far as its first word, which it says when its device is open."""
    return any(event["event"] == "hello" for event in events[0])


class _Watch:
    """Everything that is read while a case runs."""

    def __init__(self, folder: Path, ranks: int, devices: Sequence[DeviceWatch]) -> None:
        self._readers = [EventReader(events_file(folder, rank)) for rank in range(ranks)]
        self.events: list[list[Event]] = [[] for _ in range(ranks)]
        self.host = HostSampler(_INTERVAL_S)
        self.devices = devices

    def look(self, pid: int) -> None:
        """Read everything once."""
        self.host.sample(pid)
        for device in self.devices:
            device.look(self.host.pids)
        for events, reader in zip(self.events, self._readers, strict=True):
            events.extend(reader.new())

    @property
    def phase(self) -> str | None:
        """The phase that rank 0 entered last, by what it said."""
        phases = [event["phase"] for event in self.events[0] if event["event"] == "phase"]
        return phases[-1] if phases else None


@dataclass(frozen=True, slots=True)
class _End:
    status: int
    timed_out: bool
    killed_for_memory: bool
    log: Path
    given_up: bool = False

    @property
    def from_outside(self) -> bool:
        """Whether a signal ended it that nobody here sent."""
        return self.status in _FROM_OUTSIDE and not (self.timed_out or self.given_up)

    @property
    def by_kernel(self) -> bool:
        """Whether that was the kernel, for memory."""
        return self.from_outside and self.status == -signal.SIGKILL and self.killed_for_memory


def _verdict(events: Sequence[Sequence[Event]], end: _End, case: RunCase) -> tuple[Outcome, str | None]:
    """How the case ended: by what its ranks said themselves,
    and by its death only where they said nothing.
    """
    failures = sorted(
        (each for rank in events for each in rank if each["event"] == "failed"),
        key=lambda each: each["time_s"],
    )
    # Ranks that lose the one that was killed fail too, and say so.
    if failures and not (end.by_kernel and failures[0]["outcome"] == "crash"):
        return failures[0]["outcome"], failures[0]["message"]
    if all(rank and rank[-1]["event"] == "done" for rank in events):
        return "ok", None
    if end.timed_out:
        return "timeout", f"not done after {case.options.timeout_s:g} s"
    if end.by_kernel:
        return "host_oom", "killed by the kernel because the container ran out of memory"
    died = (
        f"killed by signal {signal.Signals(-end.status).name}"
        if end.status < 0
        else f"ended with status {end.status}"
    )
    died += " from outside" * end.from_outside
    on_cpu_with_limit = (
        end.status < 0 and case.options.memory_limit_bytes is not None and case.values.get("gpu") == CPU
    )
    limit = "; native code may die so when a memory limit refuses it memory, which a larger limit would show"
    return (
        "crash",
        f"{died} and said nothing{limit * on_cpu_with_limit}; the end of its log: {_tail(end.log)}",
    )


def _read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "empty"
    return " / ".join(line.strip() for line in lines if line.strip())[-_MAX_LOG_CHARS:] or "empty"
