"""Temporary folders of cases: gone at the end, and those of a killed parent at the next start;
nobody else's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from measure.run.cases.case_folder import case_folder, remove_abandoned_folders
from measure.run.launcher import Launcher

ROOT = Path(__file__).resolve().parents[4]
OWNER = """
import sys
from measure.run.cases.case_folder import case_folder
with case_folder() as folder:
    (folder / "trainer-x").mkdir()
    (folder / "trainer-x" / "checkpoint").write_text("weights")
    print(folder, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of this test alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@contextmanager
def owner() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a folder of its own, an hour old."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        make_old(folder)
        yield process, folder
        process.kill()


def make_old(folder: Path) -> None:
    """As if it had been made an hour ago."""
    os.utime(folder, (time.time() - 3600, time.time() - 3600))


def test_the_folder_of_a_killed_parent_is_removed_at_the_next_start() -> None:
    """With all that its worker wrote; that of a parent that lives stays, however old it is."""
    with owner() as (killed, left), owner() as (_, alive):
        killed.kill()
        killed.wait()
        assert (left / "trainer-x" / "checkpoint").exists()
        with Launcher():
            assert not left.exists()
            assert (alive / "trainer-x" / "checkpoint").exists()


def test_a_folder_ends_with_its_case(temporary: Path) -> None:
    """Nothing is left of it, and one that has just been made is nobody's to remove."""
    with case_folder() as folder:
        assert folder.parent == temporary
        assert remove_abandoned_folders() == ()
    assert list(temporary.iterdir()) == []


def test_what_is_not_ours_stays(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No owner's file, an owner's file that is a link, a link to a folder, a folder of another user."""
    plain, linked, others = (temporary / f"measure-{name}" for name in ("plain", "linked", "others"))
    for folder in (plain, linked, others):
        folder.mkdir()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "owner").touch()
    (linked / "owner").symlink_to(elsewhere / "owner")
    (temporary / "measure-link").symlink_to(elsewhere)
    for folder in (plain, linked, elsewhere):
        make_old(folder)
    assert remove_abandoned_folders() == ()
    (others / "owner").touch()
    make_old(others)
    monkeypatch.setattr(os, "getuid", lambda: temporary.stat().st_uid + 1)
    assert remove_abandoned_folders() == ()
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert remove_abandoned_folders() == (others,)
    assert sorted(each.name for each in temporary.iterdir()) == [
        "measure-link",
        "measure-linked",
        "measure-plain",
    ]
    assert (elsewhere / "owner").exists()
