"""Host memory of the processes of a case, sampled from outside,
and the memory figures of the control group.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

CGROUP = Path("/sys/fs/cgroup")
# PSS walks all mappings of a process and stalls it meanwhile: milliseconds,
# and more with tens of gigabytes of host memory.
_PSS_PERIOD_S = 0.5
_PSS_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class HostPeaks:
    """Highest of what was seen over the life of a case, in bytes;
    ``None`` where the system has no such figure.

    ``rss`` counts a page that two processes share in each of them, ``pss`` divides it among them.  The
    largest process and the sum over all processes of the case.  ``cgroup`` is everything in the container,
    the page cache with it.  ``machine`` is how far the kernel's available memory fell.  All processes count
    there, and page-locked memory too, for which the driver may charge no process.
    """

    rss_process_bytes: int | None
    rss_total_bytes: int | None
    pss_process_bytes: int | None
    pss_total_bytes: int | None
    cgroup_bytes: int | None
    machine_bytes: int | None
    n_samples: int
    interval_s: float


class HostSampler:
    """Call :meth:`sample` again and again while the case runs."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._rss: list[int] = [0, 0]
        self._pss: list[int] = [0, 0]
        self._cgroup = 0
        self._available_bytes = self._least_available_bytes = 0
        self._n_samples = 0
        self._next_pss_s = 0.0
        self._processes: list[psutil.Process] = []

    def sample(self, pid: int) -> None:
        """Read the processes under ``pid`` once; processes that are gone are left out."""
        import psutil

        now_s = time.monotonic()
        with_pss = now_s >= self._next_pss_s
        if with_pss:
            # Looking for children reads the whole process table.
            self._processes = _tree(pid)
        rss, pss = [], []
        for process in self._processes:
            try:
                rss.append(process.memory_info().rss)
                if with_pss:
                    pss.append(getattr(process.memory_full_info(), "pss", 0))
            except (psutil.Error, OSError):
                continue
        if with_pss:
            end_s = time.monotonic()
            self._next_pss_s = end_s + max(_PSS_PERIOD_S, (end_s - now_s) / _PSS_SHARE)
        if rss:
            self._n_samples += 1
            self._rss = [max(self._rss[0], *rss), max(self._rss[1], sum(rss))]
        if pss:
            self._pss = [max(self._pss[0], *pss), max(self._pss[1], sum(pss))]
        self._cgroup = max(self._cgroup, cgroup_bytes("current") or 0)
        available_bytes = _available_bytes()
        # From the first look on: what started the case may have had to be started itself.
        self._available_bytes = self._available_bytes or available_bytes
        self._least_available_bytes = min(self._least_available_bytes or available_bytes, available_bytes)

    @property
    def pids(self) -> list[int]:
        """The processes of the case that were there at the last look."""
        return [process.pid for process in self._processes]

    def peaks(self) -> HostPeaks:
        """The highest values so far."""
        return HostPeaks(
            self._rss[0] or None,
            self._rss[1] or None,
            self._pss[0] or None,
            self._pss[1] or None,
            self._cgroup or None,
            self._available_bytes - self._least_available_bytes or None,
            self._n_samples,
            self._interval_s,
        )


def _available_bytes() -> int:
    """Memory of the machine that programs could still have."""
    import psutil

    return int(psutil.virtual_memory().available)


def _tree(pid: int) -> list[psutil.Process]:
    """The process and those under it that run the same program:
    compilers that a library starts are no part of the job.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        program = process.exe()
        return [process, *(each for each in process.children(recursive=True) if _program(each) == program)]
    except psutil.Error:
        return []


def _program(process: psutil.Process) -> str | None:
    import psutil

    try:
        return process.exe()
    except psutil.Error:
        return None


def cgroup_bytes(what: str, root: Path = CGROUP) -> int | None:
    """``current``, ``peak`` or ``max`` of the control group's memory, version 2 or 1; ``None``: no group,
    or no limit.
    """
    older = {"current": "usage_in_bytes", "peak": "max_usage_in_bytes", "max": "limit_in_bytes"}[what]
    for path in (root / f"memory.{what}", root / "memory" / f"memory.{older}"):
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        # Version 1 writes "no limit" as a number of about 2**63.
        if text.isdigit() and int(text) < 2**60:
            return int(text)
    return None


def cgroup_kills(root: Path = CGROUP, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """How many processes of the control group the kernel has killed for memory so far.

    A container sees its group as the root; a job of Slurm or a user's session is in one further down,
    which ``own`` names.
    """
    for path in (*_own_files(root, own), root / "memory.events", root / "memory" / "memory.oom_control"):
        try:
            lines = path.read_text(encoding="ascii").split("\n")
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdigit():
                return int(value)
    return None


def _own_files(root: Path, own: Path) -> list[Path]:
    """Where the group of this process counts kills, version 2 (``0::/path``) and 1 (``7:memory:/path``);
    see cgroups(7).
    """
    try:
        lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        return []
    groups = {kinds: path.lstrip("/") for _, kinds, path in (line for line in lines if len(line) == 3)}
    files = [root / groups[""] / "memory.events"] if "" in groups else []
    older = next((path for kinds, path in groups.items() if "memory" in kinds.split(",")), None)
    return files if older is None else [*files, root / "memory" / older / "memory.oom_control"]
