"""One request over HTTPS: within one deadline, never in the clear, with credentials for one host alone."""

from __future__ import annotations

import socket
import time
import urllib.error
from collections.abc import Callable
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from planner.catalog.hub_request import goes_through_proxy, read_within, reason_of
from tests.planner.catalog.hub_double import Double, content, gated, hub_double, proxy_double, redirect

TOKEN = "Bearer hf_verysecrettoken"


def read(url: str, authorization: str = "", *, seconds: float = 5.0, max_bytes: int = 100) -> bytes:
    """What ``url`` answers."""
    return read_within(seconds, url, authorization, max_bytes)


def refused(url: str, *, seconds: float = 5.0) -> str:
    """Why ``url`` has no answer."""
    with pytest.raises((OSError, HTTPException, ValueError)) as caught:
        read(url, seconds=seconds)
    return reason_of(caught.value)


def test_an_answer_is_cut_off_and_half_of_one_is_none(server: Double) -> None:
    """After so many bytes; one that ends before its length is refused."""
    server.answers["/x"] = content("abcdef")
    assert read(f"{server.address}/x", max_bytes=4) == b"abcd"
    server.answers["/x"] = content("abcdef", 200, **{"Content-Length": "40"})
    assert refused(f"{server.address}/x") == "not an answer over HTTP"
    assert refused("nowhere") == "no usable address"


def _drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte, again and again, each well within a timeout of the socket."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def _drip_headers(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.0 200 OK\r\n")
    for number in range(100):
        handler.wfile.write(f"X-{number}: 1\r\n".encode())
        handler.wfile.flush()
        time.sleep(0.05)


def _circle(handler: BaseHTTPRequestHandler) -> None:
    """Redirects, each of which takes a while."""
    time.sleep(0.05)
    redirect(f"{handler.path}x")(handler)


@pytest.mark.parametrize("slow", [_drip, _drip_headers, _circle, lambda _: time.sleep(3)])
def test_one_deadline_for_the_whole(slow: Callable[[BaseHTTPRequestHandler], None], server: Double) -> None:
    """A server that drips, redirects slowly or never answers takes no longer than the deadline."""
    server.answers |= dict.fromkeys(["/" + "x" * n for n in range(20)], slow)
    begin = time.monotonic()
    assert refused(f"{server.address}/", seconds=0.2) == "no answer in time"
    assert 0.15 < time.monotonic() - begin < 1


def test_what_comes_before_the_first_byte_counts_too(no_proxy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that never speaks, a name service that hangs, and one that does not know the name."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        assert refused(url, seconds=0.1) == "no answer in time"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(3))
    begin = time.monotonic()
    assert refused("https://elsewhere.invalid", seconds=0.1) == "no answer in time"
    assert time.monotonic() - begin < 1

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert refused("https://elsewhere.invalid") == "its name is not known here"


@pytest.mark.parametrize("scheme", ["http", "HTTP", "ftp"])
def test_redirects_stay_on_https(scheme: str, server: Double) -> None:
    """A redirect to anything but HTTPS is refused; urllib itself follows none to a file."""
    server.answers["/x"] = redirect(f"{scheme}://localhost:9/y")
    assert refused(f"{server.address}/x") == "it redirects to an address that is not https"
    server.answers["/x"] = redirect("file:///etc/passwd")
    with pytest.raises(urllib.error.HTTPError, match="307"):
        read(f"{server.address}/x")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_credentials_follow_a_redirect_on_their_host(status: int, server: Double) -> None:
    """They are sent only once the answer without them is 401."""
    server.answers |= {"/x": redirect("/gated", status), "/gated": gated("{}", TOKEN)}
    assert read(f"{server.address}/x", TOKEN) == b"{}"
    assert server.asked == [(path, sent, None) for sent in (None, TOKEN) for path in ("/x", "/gated")]


def test_credentials_never_go_to_another_host(certificate: Path, server: Double) -> None:
    """A redirect to another port of the machine is followed without them."""
    with hub_double(certificate) as other:
        server.answers["/x"] = redirect(f"{other.address}/there")
        other.answers["/there"] = content("", 401)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            read(f"{server.address}/x", TOKEN)
    assert server.asked[-1] == ("/x", TOKEN, None)
    assert other.asked == [("/there", None, None)] * 2


def test_a_certificate_that_is_not_trusted(server: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names the way of companies with their own authority."""
    monkeypatch.delenv("SSL_CERT_FILE")
    assert "certificate is not trusted" in (reason := refused(server.address))
    assert "SSL_CERT_FILE" in reason
    assert not server.asked


def test_a_proxy_is_used(server: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """``HTTPS_PROXY`` with its password, which the host never sees; ``NO_PROXY`` keeps hosts from it."""
    with proxy_double() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@{proxy.address}")
        server.answers |= {"/x": redirect("/again"), "/again": content("{}")}
        assert read(f"{server.address}/x") == b"{}"
        assert proxy.asked == [(f"localhost:{server.port}", None, "Basic dXNlcjpzZWNyZXQ=")] * 2
        assert server.asked == [("/x", None, None), ("/again", None, None)]
        assert goes_through_proxy("localhost")
        monkeypatch.setenv("NO_PROXY", "localhost")
        assert not goes_through_proxy("localhost")
        read(f"{server.address}/x")
        assert len(proxy.asked) == 2


def test_a_redirect_past_the_proxy_carries_no_password(
    certificate: Path, server: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the new host is not behind the proxy, it must not see the proxy's password."""
    with proxy_double() as proxy, hub_double(certificate) as other:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@{proxy.address}")
        monkeypatch.setenv("NO_PROXY", f"localhost:{other.port}")
        server.answers["/x"] = redirect(f"{other.address}/there")
        other.answers["/there"] = content("{}")
        assert read(f"{server.address}/x") == b"{}"
        assert len(proxy.asked) == 1
        assert other.asked == [("/there", None, None)]


def test_a_proxy_that_refuses(server: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is not taken for that of the host, and its address is not told."""
    with proxy_double(407) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@{proxy.address}")
        assert refused(server.address) == "the proxy answered with HTTP 407"
