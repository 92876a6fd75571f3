"""How cases are started: what happens when the warm parent has opened the device, and how a death is told."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import measure.launcher
from measure.case import Case, RunOptions
from measure.launcher import Launcher, _End, _verdict


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
    """Children of the second one fork where it left the device alone; one that opens it all the same is not tried again."""
    parent: Any = type("Parent", (Parent,), {"started": [], "opens_always": opens_always})
    monkeypatch.setattr(measure.launcher, "Zygote", parent)
    with Launcher() as launcher:
        assert launcher.facts["cuda_initialized"] is opens_always
        assert launcher.facts is launcher.facts
        assert launcher._zygote is not None
        assert launcher._zygote.can_fork is not opens_always
    assert parent.started == [False, True]


@pytest.mark.parametrize(("limit_bytes", "told"), [(None, False), (10**9, True)])
def test_a_native_death_under_a_memory_limit_names_the_limit(tmp_path: Path, limit_bytes: int | None, told: bool) -> None:
    """A library that does not look whether it got memory dies by a signal: a crash still, with the limit named."""
    case = Case({"gpu": "cpu"}, RunOptions(memory_limit_bytes=limit_bytes))
    outcome, message = _verdict([[]], _End(-signal.SIGSEGV, False, False, tmp_path / "none"), case)
    assert outcome == "crash"
    assert message is not None
    assert "SIGSEGV" in message
    assert ("a larger limit" in message) is told
