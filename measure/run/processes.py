"""The ways to start the worker of a case: forked from the warm zygote, spawned,
or several ranks under torchrun.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from measure.run.protocol import LOG_FILE, ONLY_NEEDED
from planner.errors import PlannerError

# The first import of torch on a fresh machine reads gigabytes, from a slow or distant disk too.
_START_TIMEOUT_S = 600.0
_MAX_REASON_CHARS = 300
# The zygote may ask whether there is a GPU without opening it.
_WORKER_VARIABLES = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # The driver's library counts devices in this order.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


class Child(Protocol):
    """A started worker, with everything under it in one process group."""

    pid: int

    def status(self) -> int | None:
        """How it ended as ``subprocess`` says it (negative: the signal), or ``None`` while it runs."""


class ZygoteError(PlannerError):
    """The warm parent does not start or has gone."""


class Zygote:
    """The warm parent of forked workers.  ``only_needed``:
    it imports nothing that some cases could do without.
    """

    def __init__(self, *, only_needed: bool = False) -> None:
        # A file, because nobody reads a pipe while the process waits for its next case.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "measure.worker.zygote", *([ONLY_NEEDED] if only_needed else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=worker_environment(),
            start_new_session=True,
        )
        self._answers: queue.Queue[Mapping[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.facts = self._answer(_START_TIMEOUT_S)
        except ZygoteError:
            self.close()
            raise

    def fork(self, folder: Path) -> Child:
        """Start the worker of the case in ``folder``.

        Raises:
            ZygoteError: it has gone.
        """
        try:
            self._stdin.write(json.dumps({"folder": str(folder)}) + "\n")
            self._stdin.flush()
        except OSError:
            raise ZygoteError("the process that starts cases has gone") from None
        return _Forked(int(self._answer(_START_TIMEOUT_S)["pid"]), self)

    def status(self) -> int | None:
        """How the forked worker ended, ``None`` while it runs."""
        try:
            answer = self._answers.get_nowait()
        except queue.Empty:
            return None
        if answer is None:
            raise ZygoteError("the process that starts cases has gone")
        return os.waitstatus_to_exitcode(int(answer["status"]))

    @property
    def can_fork(self) -> bool:
        """Whether a fork is safe: CUDA is untouched and the process lives."""
        return not self.facts["cuda_initialized"] and self.alive

    @property
    def alive(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._complaints.close()

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    def _read(self) -> None:
        stream: Any = self._process.stdout
        try:
            for line in stream:
                self._answers.put(json.loads(line))
        except ValueError:
            pass
        self._answers.put(None)

    def _answer(self, timeout_s: float) -> Mapping[str, Any]:
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            answer = None
        if answer is None:
            raise ZygoteError(
                "the process that starts cases does not answer: can this Python import torch and "
                f"transformers?{self._reason()}"
            )
        return answer

    def _reason(self) -> str:
        """The last line that it wrote before it went silent."""
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f" It said: {last[:_MAX_REASON_CHARS]}" if last else ""


class _Forked:
    def __init__(self, pid: int, zygote: Zygote) -> None:
        self.pid = pid
        self._zygote = zygote
        self._status: int | None = None

    def status(self) -> int | None:
        if self._status is None:
            self._status = self._zygote.status()
        return self._status


class _Spawned:
    def __init__(self, command: list[str], folder: Path, variables: Mapping[str, str]) -> None:
        with (folder / LOG_FILE).open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=worker_environment() | dict(variables),
                start_new_session=True,
            )
        self.pid = self._process.pid

    def status(self) -> int | None:
        return self._process.poll()


def spawn(folder: Path) -> Child:
    """Start the worker as a fresh process, where forking is not possible."""
    return _Spawned([sys.executable, "-m", "measure.worker.worker", str(folder)], folder, {})


def spawn_ranks(
    folder: Path, ranks: int, variables: Mapping[str, str], *, nodes: int = 1, meeting: str = ""
) -> Child:
    """Start one worker for each rank on this machine, by torchrun;
    other machines do the same and meet at ``meeting``.
    """
    command = [sys.executable, "-m", "measure.worker.ranks", str(ranks), str(folder), str(nodes), meeting]
    return _Spawned(command, folder, variables)


def kill_group(pid: int) -> None:
    """Kill a worker and everything it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def worker_environment() -> dict[str, str]:
    """Environment variables of a worker: those of this process, this package on the path,
    and this Python's own programs.

    Libraries that compile on first use call ``ninja`` by name,
    which lies beside the Python of an environment that is not active.
    """
    root = str(Path(__file__).resolve().parents[2])
    modules, programs = os.environ.get("PYTHONPATH", ""), os.environ.get("PATH", os.defpath)
    return {
        **os.environ,
        **_WORKER_VARIABLES,
        "PYTHONPATH": os.pathsep.join(part for part in (root, modules) if part),
        "PATH": os.pathsep.join((programs, str(Path(sys.executable).parent))),
    }
