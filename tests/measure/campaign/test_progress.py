"""How far a campaign is: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from measure.campaign.progress import open_progress


class Terminal(io.StringIO):
    """A standard error that says it is a terminal, or that it is none."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        """What it was told to say."""
        return self._terminal


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "file"])
def test_each_case_is_shown_with_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """Case, outcome, reserved memory, step, quality and the time that is left, in both;
    control codes on a terminal only.
    """
    stream = Terminal(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    record = SimpleNamespace(peak_memory_mib=3072.0, step_time_s=0.25, outcome="ok")
    measured: Any = SimpleNamespace(record=record, attachments={"quality": {"verdict": "good"}})
    with open_progress(2) as progress:
        progress.begin("first case", None)
        progress.end("first case", measured)
        progress.begin("second case", 90.0)
        progress.end("second case", measured)
    shown = stream.getvalue()
    for text in ("first case", "ok", "3.00 GiB", "250 ms", "good", "second case, about 90.00 s left", "2/2"):
        assert text in shown
    assert ("\x1b[" in shown) is terminal
