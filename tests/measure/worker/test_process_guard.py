"""Whether a process may still fork."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(("answer", "opened"), [(3, False), (0, True), (100, True)])
def test_a_driver_that_was_opened_past_torch_is_seen(
    monkeypatch: pytest.MonkeyPatch, answer: int, opened: bool
) -> None:
    """The driver refuses to count before it is opened; whatever else it answers,
    its process must not fork.
    """
    from measure.worker import process_guard

    monkeypatch.setattr(
        process_guard.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(cuDeviceGetCount=lambda _: answer)
    )
    assert process_guard.driver_is_open() is opened
    monkeypatch.undo()
    assert process_guard.driver_is_open() is False
