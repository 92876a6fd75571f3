"""A case that somebody killed is run once more; one that ended otherwise,
or that the kernel killed for memory, is not.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import measure.run.launcher
from measure.run.cases.case import RunCase, RunOptions
from measure.run.launcher import Launcher, RunResult
from measure.run.protocol import events_file
from measure.run.readings.host_memory import cgroup_kills
from tests.extras import import_or_skip

import_or_skip("psutil")

DONE = '{"event": "done", "time_s": 2.0}\n'
OUT_OF_MEMORY = '{"event": "failed", "time_s": 1.0, "outcome": "oom", "message": "no memory"}\n'
LOST = '{"event": "failed", "time_s": 1.0, "outcome": "crash", "message": "connection closed by peer"}\n'
WORKER = """
import os, sys, time
path, text, ending = sys.argv[1:]
with open(path, "w") as stream:
    stream.write(text)
if ending == "hang":
    time.sleep(60)
os.kill(os.getpid(), int(ending)) if int(ending) else None
"""
KILL, TERM, SEGV = (str(int(number)) for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV))


class Worker:
    """A process that says something and ends in some way, in the place of a real worker."""

    def __init__(self, folder: Path, text: str, ending: str) -> None:
        call = [sys.executable, "-S", "-c", WORKER, str(events_file(folder, 0)), text, ending]
        self._process = subprocess.Popen(call, start_new_session=True)
        self.pid = self._process.pid

    def status(self) -> int | None:
        """As the real one."""
        return self._process.poll()


def run(
    monkeypatch: pytest.MonkeyPatch,
    *endings: tuple[str, str],
    end_s: float | None = None,
    kills: tuple[int, ...] = (),
    **case: Any,
) -> tuple[RunResult, int]:
    """A case whose workers end so, one after the other; and how many of them were started."""
    left, counts = list(endings), list(kills)

    def start(_: Launcher, __: RunCase, folder: Path, *___: object) -> tuple[Worker, str]:
        return Worker(folder, *left.pop(0)), "spawn"

    monkeypatch.setattr(Launcher, "_start", start)
    monkeypatch.setattr(measure.run.launcher, "cgroup_kills", lambda: counts.pop(0) if counts else 0)
    with Launcher() as launcher:
        options = RunOptions(timeout_s=case.pop("timeout_s", 30.0))
        done = launcher.run(RunCase({"gpu": "cpu", **case}, options), end_s=end_s)
    return done, len(endings) - len(left)


@pytest.mark.parametrize("number", [KILL, TERM])
def test_a_case_that_was_killed_is_run_once_more(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attempt counts."""
    done, started = run(monkeypatch, ("", number), (DONE, "0"))
    assert (done.outcome, done.message, started) == ("ok", None, 2)


def test_a_case_that_is_killed_again_is_recorded_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a third time: a crash, with what happened."""
    done, started = run(monkeypatch, ("", KILL), ("", KILL), (DONE, "0"))
    assert (done.outcome, started) == ("crash", 2)
    assert (done.message or "").startswith("twice: killed by signal SIGKILL from outside")


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (("", SEGV), "crash"),
        (("", "0"), "crash"),
        ((OUT_OF_MEMORY, KILL), "oom"),
        ((LOST, "0"), "crash"),
        ((DONE, KILL), "ok"),
    ],
)
def test_what_ended_by_itself_is_not_run_again(
    ending: tuple[str, str], outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A native death, a silent end, a shortage that was said: findings of the case;
    one that was done before it died is ok.
    """
    done, started = run(monkeypatch, ending, (DONE, "0"))
    assert (done.outcome, started) == (outcome, 1)


@pytest.mark.parametrize("said", ["", LOST])
def test_the_kernel_that_kills_for_memory_is_host_memory_and_is_not_tempted_again(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count of kills has grown;
    what other ranks said when they lost the one that was killed does not hide it.
    """
    done, started = run(monkeypatch, (said, KILL), (DONE, "0"), kills=(3, 4))
    assert (done.outcome, started) == ("host_oom", 1)


def test_our_own_timeout_is_no_kill_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a timeout, once."""
    done, started = run(monkeypatch, ("", "hang"), (DONE, "0"), timeout_s=0.3)
    assert (done.outcome, done.killed, started) == ("timeout", False, 1)


def test_the_second_attempt_ends_with_the_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the timeout of the case."""
    start_s = time.monotonic()
    done, started = run(monkeypatch, ("", KILL), ("", "hang"), end_s=start_s + 3.0)
    assert (done.outcome, started) == ("timeout", 2)
    assert time.monotonic() - start_s < 15


def test_one_node_of_several_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for the others, which have ended."""
    done, started = run(monkeypatch, ("", KILL), (DONE, "0"), nodes=2)
    assert (done.outcome, started) == ("crash", 1)


def test_kills_are_counted_in_the_group_of_the_process(tmp_path: Path) -> None:
    """A job of Slurm is in a group below the root, which has no count; version 1 names each controller."""
    own, root = tmp_path / "own", tmp_path / "root"
    own.write_text("0::/system.slice/slurmstepd.scope/job_7\n", encoding="utf-8")
    group = root / "system.slice" / "slurmstepd.scope" / "job_7"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\noom 5\noom_kill 2\n", encoding="ascii")
    assert cgroup_kills(root, own) == 2
    own.write_text("9:name=systemd:/a\n8:cpu,memory:/slurm/job_7\n", encoding="utf-8")
    (root / "memory" / "slurm" / "job_7").mkdir(parents=True)
    (root / "memory" / "slurm" / "job_7" / "memory.oom_control").write_text(
        "under_oom 0\noom_kill 3\n", encoding="ascii"
    )
    assert cgroup_kills(root, own) == 3
    assert cgroup_kills(root, tmp_path / "none") is None
