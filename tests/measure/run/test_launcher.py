"""How cases are started, how a death is told, and what is run once more."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import measure.run.launcher
from measure.run.cases.case import RunCase, RunOptions
from measure.run.launcher import Launcher, RunResult, _End, _verdict
from measure.run.protocol import events_file
from measure.run.readings.host_memory import HostPeaks
from tests.extras import needs

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


class Parent:
    """A warm parent; one that imports the compiler opens the device."""

    started: list[bool]
    opens_always = False

    def __init__(self, *, only_needed: bool = False) -> None:
        self.started.append(only_needed)
        self.facts = {"cuda_initialized": self.opens_always or not only_needed}
        self.alive = True

    @property
    def can_fork(self) -> bool:
        """As the real one."""
        return not self.facts["cuda_initialized"]

    def close(self) -> None:
        """It ends."""
        self.alive = False


@pytest.mark.parametrize("opens_always", [False, True])
def test_a_parent_that_opened_the_device_is_replaced_by_one_that_imports_less(
    monkeypatch: pytest.MonkeyPatch, opens_always: bool
) -> None:
    """Children of the second one fork where it left the device alone;
    one that opens it all the same is not tried again.
    """
    parent: Any = type("Parent", (Parent,), {"started": [], "opens_always": opens_always})
    monkeypatch.setattr(measure.run.launcher, "Zygote", parent)
    with Launcher() as launcher:
        assert launcher.facts["cuda_initialized"] is opens_always
        assert launcher.facts is launcher.facts
        assert launcher._zygote is not None
        assert launcher._zygote.can_fork is not opens_always
    assert parent.started == [False, True]


@pytest.mark.parametrize(("limit_bytes", "told"), [(None, False), (10**9, True)])
def test_a_native_death_under_a_memory_limit_names_the_limit(
    tmp_path: Path, limit_bytes: int | None, told: bool
) -> None:
    """A library that does not look whether it got memory dies by a signal: a crash still,
    with the limit named.
    """
    case = RunCase({"gpu": "cpu"}, RunOptions(memory_limit_bytes=limit_bytes))
    outcome, message = _verdict([[]], _End(-signal.SIGSEGV, False, False, tmp_path / "none"), case)
    assert outcome == "crash"
    assert message is not None
    assert "SIGSEGV" in message
    assert ("a larger limit" in message) is told


def ended(how: str, *events: str) -> RunResult:
    """A case that crashed after it had said ``events``."""
    said = tuple({"event": event} for event in events)
    host = HostPeaks(None, None, None, None, None, None, 1, 0.05)
    return RunResult("crash", None, "no CUDA device", (said,), host, (), 0.0, 1.0, how)


@pytest.mark.parametrize(
    ("gpu", "forked", "spawned", "ways", "forks_on"),
    [
        ("h200", (), ("hello",), ["fork", "spawn"], False),
        ("h200", (), (), ["fork", "spawn"], True),
        ("h200", ("hello",), (), ["fork"], True),
        ("cpu", (), (), ["fork"], True),
    ],
)
def test_a_fork_that_opens_no_device_is_tried_as_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
    gpu: str,
    forked: tuple[str, ...],
    spawned: tuple[str, ...],
    ways: list[str],
    forks_on: bool,
) -> None:
    """Whatever the reason: where only a spawned worker comes to its device, no later case is forked."""
    tried: list[str] = []

    def run_once(launcher: Launcher, *_: Any, may_fork: bool = True) -> RunResult:
        tried.append("fork" if may_fork and launcher._may_fork else "spawn")
        return ended(tried[-1], *(forked if tried[-1] == "fork" else spawned))

    monkeypatch.setattr(Launcher, "_run_once", run_once)
    with Launcher() as launcher:
        assert launcher.run(RunCase({"gpu": gpu}, RunOptions())).how == ways[-1]
        assert tried == ways
        assert launcher._may_fork is forks_on


@needs("psutil")
def test_a_fork_that_hangs_before_its_device_is_open_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that it inherited would hold it until the timeout, and every case after it:
    it is killed early, which is a crash.
    """
    killed: list[int] = []
    child = SimpleNamespace(pid=2**22 + 1, status=lambda: -signal.SIGKILL if killed else None)
    monkeypatch.setattr(measure.run.launcher, "_OPENING_S", 0.0)
    monkeypatch.setattr(measure.run.launcher, "kill_group", killed.append)
    monkeypatch.setattr(Launcher, "_start", lambda *_: (child, "fork"))
    with Launcher() as launcher:
        run = launcher._run_once(RunCase({"gpu": "h200"}, RunOptions(timeout_s=600.0)), 1, ())
    assert killed[0] == child.pid
    assert (run.outcome, run.how) == ("crash", "fork")
    assert "SIGKILL" in (run.message or "")


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


@needs("psutil")
@pytest.mark.parametrize("number", [KILL, TERM])
def test_a_case_that_was_killed_is_run_once_more(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attempt counts."""
    done, started = run(monkeypatch, ("", number), (DONE, "0"))
    assert (done.outcome, done.message, started) == ("ok", None, 2)


@needs("psutil")
def test_a_case_that_is_killed_again_is_recorded_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a third time: a crash, with what happened."""
    done, started = run(monkeypatch, ("", KILL), ("", KILL), (DONE, "0"))
    assert (done.outcome, started) == ("crash", 2)
    assert (done.message or "").startswith("twice: killed by signal SIGKILL from outside")


@needs("psutil")
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


@needs("psutil")
@pytest.mark.parametrize("said", ["", LOST])
def test_the_kernel_that_kills_for_memory_is_host_memory_and_is_not_tempted_again(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count of kills has grown;
    what other ranks said when they lost the one that was killed does not hide it.
    """
    done, started = run(monkeypatch, (said, KILL), (DONE, "0"), kills=(3, 4))
    assert (done.outcome, started) == ("host_oom", 1)


@needs("psutil")
def test_our_own_timeout_is_no_kill_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a timeout, once."""
    done, started = run(monkeypatch, ("", "hang"), (DONE, "0"), timeout_s=0.3)
    assert (done.outcome, done.killed, started) == ("timeout", False, 1)


@needs("psutil")
def test_the_second_attempt_ends_with_the_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the timeout of the case."""
    start_s = time.monotonic()
    done, started = run(monkeypatch, ("", KILL), ("", "hang"), end_s=start_s + 3.0)
    assert (done.outcome, started) == ("timeout", 2)
    assert time.monotonic() - start_s < 15


@needs("psutil")
def test_one_node_of_several_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for the others, which have ended."""
    done, started = run(monkeypatch, ("", KILL), (DONE, "0"), nodes=2)
    assert (done.outcome, started) == ("crash", 1)
