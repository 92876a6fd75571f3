"""Locks of files: who holds one, who may share it, and where there are none."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from planner.records import locking
from planner.records.locking import lock, locked

pytestmark = pytest.mark.skipif(locking.fcntl is None, reason="no locks of files here")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty file."""
    (tmp_path / "a").touch()
    return tmp_path / "a"


def test_one_holds_a_file_alone_until_it_is_closed(path: Path) -> None:
    """Another that does not wait is told."""
    with path.open("r+") as first, path.open("r+") as second:
        assert lock(first) is True
        assert lock(second) is False
        assert lock(second, shared=True) is False
        first.close()
        assert lock(second) is True


def test_several_may_share_a_file(path: Path) -> None:
    """Nobody has it alone meanwhile."""
    with path.open("r+") as first, path.open("r+") as second, path.open("r+") as third:
        assert lock(first, shared=True) is True
        assert lock(second, shared=True) is True
        assert lock(third) is False


def test_a_lock_for_a_moment_is_given_back(path: Path) -> None:
    """Also after an error inside of it."""
    with path.open("r+") as first, path.open("r+") as second:
        with locked(first):
            assert lock(second) is False
        with pytest.raises(KeyError), locked(first):
            raise KeyError
        assert lock(second) is True


@pytest.mark.parametrize(
    ("number", "wait", "found"),
    [(errno.ENOLCK, False, None), (errno.EOPNOTSUPP, True, None), (errno.EAGAIN, False, False)],
)
def test_a_file_system_may_have_no_locks(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, wait: bool, found: bool | None
) -> None:
    """That is no error; neither is another holder, for who does not wait."""
    monkeypatch.setattr(locking.fcntl, "flock", refusing(number))
    with path.open("r+") as stream:
        assert lock(stream, wait=wait) is found


@pytest.mark.parametrize(("number", "wait"), [(errno.EIO, False), (errno.EAGAIN, True)])
def test_other_errors_are_not_hidden(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, wait: bool
) -> None:
    """A broken disk; a wait that was told to go away."""
    monkeypatch.setattr(locking.fcntl, "flock", refusing(number))
    with path.open("r+") as stream, pytest.raises(OSError, match="refused"):
        lock(stream, wait=wait)


def refusing(number: int) -> object:
    """A system call that fails with this error."""

    def flock(*_: object) -> None:
        raise OSError(number, "refused")

    return flock


def test_a_system_without_locks_runs_without_them(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done inside is done all the same."""
    monkeypatch.setattr(locking, "fcntl", None)
    done = []
    with path.open("r+") as stream:
        assert lock(stream) is None
        with locked(stream):
            done.append(1)
    assert done == [1]
