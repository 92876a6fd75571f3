"""Keeps the calibrations and the terminal of whoever runs the tests out of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _a_terminal_of_one_width() -> Iterator[None]:
    """Tables fold their cells on a narrow terminal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_calibrations_of_ones_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """``plan`` uses a personal calibration by itself, so the tests look for them in a folder that is empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield
