"""A server on this machine whose certificate is trusted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.planner.catalog.hub_double import Double, hub_double, make_certificate

PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the server of these tests."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy of whoever runs the tests."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def server(certificate: Path, no_proxy: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    """A server that has nothing yet."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with hub_double(certificate) as double:
        yield double
