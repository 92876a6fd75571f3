"""No network and no coloured terminal for hostile input."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_network() -> Iterator[None]:
    """A name such as ``a/b`` would be looked up on the Hub."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield
