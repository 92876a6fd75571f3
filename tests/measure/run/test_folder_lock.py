"""Two campaigns in one folder: the second is refused or waits, and nobody who died keeps others out."""

from __future__ import annotations

import errno
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import planner.records.locking
from measure.campaign.runner import Agenda
from measure.cli.main import main
from measure.run.folder_lock import folder_lock
from planner.catalog.location import data_dir
from planner.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]
needs_extra = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "transformers", "peft", "accelerate", "psutil")),
    reason="needs the measure extra",
)
HOLDER = """
import sys
from pathlib import Path
from measure.run.folder_lock import folder_lock
with folder_lock(Path(sys.argv[1]), share=sys.argv[2] or None, say=print):
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def holder(folder: Path, share: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until a line is written to it."""
    call, pipe = [sys.executable, "-c", HOLDER, str(folder), share], subprocess.PIPE
    with subprocess.Popen(call, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def take(folder: Path, share: str | None = None, *, wait: bool = False) -> list[str]:
    """Hold the lock for a moment; what was said."""
    said: list[str] = []
    with folder_lock(folder, share=share, wait=wait, say=said.append):
        return said


def test_the_second_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    """Process, machine, time and the way out; when the first has ended, nothing is left of it."""
    with holder(tmp_path) as first:
        with pytest.raises(UsageError) as refused:
            take(tmp_path)
        said = str(refused.value)
        assert f"process {first.pid} on {platform.node()}, since 20" in said
        assert "--wait waits for its end, or give another --out" in said
        assert said.isprintable()
        first.communicate("\n")
    assert (tmp_path / ".lock").read_bytes() == b""
    assert take(tmp_path) == []


def test_who_is_killed_holds_nothing(tmp_path: Path) -> None:
    """After kill -9 the name of the dead is still written there, and keeps nobody out."""
    with holder(tmp_path) as first:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    assert str(first.pid) in (tmp_path / ".lock").read_text(encoding="utf-8")
    assert take(tmp_path) == []
    with holder(tmp_path, "1/2"), pytest.raises(UsageError) as refused:
        take(tmp_path)
    assert f"process {first.pid} " not in str(refused.value)


def test_the_second_waits_where_that_is_asked(tmp_path: Path) -> None:
    """It says for whom, and goes on when the first has ended."""
    with holder(tmp_path) as first:
        call = [
            sys.executable,
            "-c",
            HOLDER.replace("say=print", "wait=True, say=lambda text: print(text, flush=True)"),
        ]
        with subprocess.Popen(
            [*call, str(tmp_path), ""], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as second:
            assert second.stdout is not None
            line = second.stdout.readline()
            assert f"process {first.pid} on" in line
            assert "waiting for its end" in line
            first.communicate("\n")
            assert second.stdout.readline() == "held\n"
            second.communicate("\n")


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [("1/2", "2/2", False), ("1/2", "1/2", True), ("1/2", "", True), ("", "1/2", True)],
)
def test_shares_keep_the_same_cases_apart_only(
    first: str, second: str, refused: bool, tmp_path: Path
) -> None:
    """Different shares have different cases;
    a share stands in the way of itself and of a campaign of all cases.
    """
    with holder(tmp_path, first) as process:
        if not refused:
            assert take(tmp_path, second or None) == []
            return
        with pytest.raises(UsageError, match=f"process {process.pid} on"):
            take(tmp_path, second or None)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_disk_without_locks_is_said_and_used(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lustre without -o flock, NFS without a lock daemon: a campaign there is not forbidden,
    and nobody is told it is safe.
    """

    def refuse(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    without: Any = SimpleNamespace(flock=refuse, LOCK_EX=2, LOCK_SH=1, LOCK_NB=4, LOCK_UN=8)
    monkeypatch.setattr(planner.records.locking, "fcntl", without)
    (said,) = take(tmp_path)
    assert "has no locks: nothing keeps a second campaign" in said


def test_a_lock_file_that_is_none_is_named(tmp_path: Path) -> None:
    """A folder in its place: one sentence."""
    (tmp_path / ".lock").mkdir()
    with pytest.raises(UsageError, match=r"\.lock' cannot be locked: Is a directory; give another --out"):
        take(tmp_path)


@needs_extra
def test_a_second_campaign_measures_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one sentence, before anything is started;
    the order of the cases may be looked at all the while.
    """
    file = str(data_dir() / "campaigns" / "cpu.toml")
    with holder(tmp_path) as first:
        assert main(["campaign", file, "--out", str(tmp_path)]) == 2
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1)
        assert f"another campaign works in '{tmp_path}': process {first.pid} on" in err
        assert main(["campaign", file, "--out", str(tmp_path), "--dry-run"]) == 0
    assert not list(tmp_path.glob("*.jsonl"))


@needs_extra
def test_a_campaign_that_waited_looks_at_the_records_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first recorded while the second waited is not measured again."""
    read: list[bool] = []
    file = str(data_dir() / "campaigns" / "cpu.toml")
    with holder(tmp_path) as first:

        def plan(*_: object, **__: object) -> Agenda:
            """Nothing is left once the first has ended, which it does when the second has begun to wait."""
            read.append(first.poll() is None)
            queue: Any = () if len(read) > 1 else (SimpleNamespace(label="case"),)
            return Agenda(queue, 1, ())

        def wait(text: str) -> None:
            assert "waiting for its end" in text
            first.communicate("\n")

        monkeypatch.setattr("measure.campaign.runner.plan_agenda", plan)
        monkeypatch.setattr("measure.cli.campaign.write_remark", wait)
        assert main(["campaign", file, "--out", str(tmp_path), "--wait"]) == 0
    assert read == [True, False]
