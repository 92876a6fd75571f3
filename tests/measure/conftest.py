"""Fixtures of the driver's and torch's doubles."""

from __future__ import annotations

import pytest

from tests.measure.driver_double import Driver


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Two cards, all of them visible."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Driver()
