"""Ctrl-C at the one place where Python drops it."""

from __future__ import annotations

import signal
import time

import pytest

from planner.interrupts import interrupts_kept


class _InterruptedAtItsEnd:
    """Ctrl-C arrives while it is freed."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def _work_for(seconds: float) -> None:
    start = time.monotonic()
    with interrupts_kept():
        _InterruptedAtItsEnd()
        while time.monotonic() < start + seconds:
            pass


def test_an_interrupt_in_a_destructor_is_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """It ends what runs, within a moment, and nothing is printed."""
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        _work_for(10)
    assert time.monotonic() < start + 10
    assert capsys.readouterr().err == ""
