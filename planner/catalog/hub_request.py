"""One bounded request over HTTPS: one deadline for all of it, redirects that stay on HTTPS,
credentials for one host alone.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from http.client import HTTPException, HTTPMessage, HTTPResponse
from threading import Thread
from typing import IO, TypeVar
from urllib.parse import urlsplit

_PIECE_BYTES = 64 * 1024
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})")
_ASKS_FOR_CREDENTIALS = frozenset({401, 403})
Answer = TypeVar("Answer")


class RedirectRefusedError(OSError):
    """A redirect to an address that is not https."""


def read_within(seconds: float, url: str, authorization: str, max_bytes: int) -> bytes:
    """What ``url`` answers, cut off after ``max_bytes``.

    ``authorization`` is sent only where the answer without it is 401 or 403, and only to the host of ``url``.

    Raises:
        urllib.error.HTTPError: the last answer was a refusal.
        TimeoutError: the time is over, whatever it was spent on.
        OSError, HTTPException, ValueError: no connection, or no answer over HTTP.
    """
    end = time.monotonic() + seconds

    def ask() -> bytes:
        try:
            return _read(url, "", max_bytes, end)
        except urllib.error.HTTPError as error:
            if not authorization or error.code not in _ASKS_FOR_CREDENTIALS:
                raise
        return _read(url, authorization, max_bytes, end)

    return _within(seconds, ask)


def reason_of(error: Exception) -> str:
    """Why a request came to nothing, in words that hold nothing of the addresses:
    those may carry passwords.
    """
    cause = getattr(error, "reason", None)
    cause = cause if isinstance(cause, Exception) else error
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, RedirectRefusedError):
        return "it redirects to an address that is not https"
    if isinstance(cause, socket.gaierror):
        return "its name is not known here"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {cause.verify_message}; SSL_CERT_FILE may name a "
            "file of authorities"
        )
    if isinstance(cause, ssl.SSLError):
        return "no encrypted connection"
    if refused := _TUNNEL.search(str(cause)):
        return f"the proxy answered with HTTP {refused[1]}"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return "no usable address" if isinstance(cause, ValueError) else "not an answer over HTTP"


def goes_through_proxy(host: str) -> bool:
    """Whether requests to ``host`` over HTTPS go through a proxy, as the environment says."""
    return bool(urllib.request.getproxies().get("https")) and not urllib.request.proxy_bypass(host)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects, never down to plain HTTP or to another scheme;
    credentials stay with the host they are for.
    """

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not newurl.lower().startswith("https://"):
            raise RedirectRefusedError
        again = super().redirect_request(req, fp, code, msg, headers, newurl)
        if again is not None:
            # urllib copies it, also where the new address is asked without a proxy;
            # its handler adds it again where one is used.
            again.headers.pop("Proxy-authorization", None)
            authorization = req.unredirected_hdrs.get("Authorization")
            if authorization and _origin(newurl) == _origin(req.full_url):
                again.add_unredirected_header("Authorization", authorization)
        return again


def _origin(url: str) -> tuple[str | None, int]:
    parts = urlsplit(url)
    return parts.hostname, parts.port or 443


def _read(url: str, authorization: str, max_bytes: int, end: float) -> bytes:
    headers = {"User-Agent": "finetune-planner", "Accept": "application/json"}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310
    if authorization:
        request.add_unredirected_header("Authorization", authorization)
    with urllib.request.build_opener(_Redirects).open(request, timeout=_left(end)) as answer:
        return _content(answer, max_bytes, end)


def _content(answer: HTTPResponse, max_bytes: int, end: float) -> bytes:
    """In pieces, because a timeout of the socket begins anew with every byte."""
    content = b""
    while len(content) < max_bytes and (piece := answer.read1(min(_PIECE_BYTES, max_bytes - len(content)))):
        content += piece
        _left(end)
    if len(content) < max_bytes and answer.length:
        raise HTTPException
    return content


def _left(end: float) -> float:
    left_s = end - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _within(seconds: float, work: Callable[[], Answer]) -> Answer:
    """What ``work`` returns or raises; ``TimeoutError`` when the time is over.

    In a thread of its own, which is left behind then: the system's look-up of a name takes no time limit.
    """
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            future.set_exception(error)

    Thread(target=run, daemon=True, name="hub").start()
    return future.result(seconds)
