"""A Hub on this machine: HTTPS with a certificate of its own, answers by path, and a proxy in front of it."""

from __future__ import annotations

import select
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from planner.words import words


@dataclass
class Double:
    """A server, its address, and what it was asked: path,
    Authorization and Proxy-Authorization of each request.
    """

    address: str
    port: int
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        """Paths of the requests, in order."""
        return [path for path, _, _ in self.asked]


def content(text: str | bytes, status: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """An answer with ``text``."""
    body = text.encode() if isinstance(text, str) else text

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def redirect(target: str, status: int = 307) -> Callable[[BaseHTTPRequestHandler], None]:
    """A redirect to ``target``."""
    return content("", status, Location=target)


def gated(text: str, authorization: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """An answer for those who send ``authorization``, and 401 for all others."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        content(text)(handler) if handler.headers["Authorization"] == authorization else content("", 401)(
            handler
        )

    return answer


@contextmanager
def hub_double(certificate: Path | None) -> Iterator[Double]:
    """A running server; without a certificate it speaks plain HTTP."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            double.asked.append(
                (self.path, self.headers["Authorization"], self.headers["Proxy-Authorization"])
            )
            double.answers.get(self.path, content("", 404))(self)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Whoever asked may have gone."""

    server = Server(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    port = server.server_address[1]
    double = Double(f"http{'s' if certificate else ''}://localhost:{port}", port)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def proxy_double(status: int = 200) -> Iterator[Double]:
    """A running proxy that lets everybody through, or answers with another ``status``."""

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            double.asked.append(
                (self.path, self.headers["Authorization"], self.headers["Proxy-Authorization"])
            )
            self.send_response(status)
            self.end_headers()
            if status == 200:
                host, _, port = self.path.rpartition(":")
                with socket.create_connection((host, int(port))) as there:
                    _pass_on(self.connection, there)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    port = server.server_address[1]
    double = Double(f"127.0.0.1:{port}", port)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()


def _pass_on(here: socket.socket, there: socket.socket) -> None:
    ends = {here: there, there: here}
    while True:
        for ready in select.select(list(ends), [], [], 5)[0]:
            piece = ready.recv(65536)
            if not piece:
                return
            ends[ready].sendall(piece)


def make_certificate(folder: Path) -> Path:
    """Key and certificate of ``localhost`` in one file, made here so that no key is kept."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    file, key = folder / "localhost.pem", folder / "key.pem"
    command = list(words("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"))
    command += [
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        str(key),
        "-out",
        str(file),
    ]
    subprocess.run(command, check=True, capture_output=True)
    file.write_text(key.read_text() + file.read_text())
    return file
