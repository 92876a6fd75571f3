"""A pseudo-terminal of a given size: what a program that writes to it puts on the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
import threading
from types import TracebackType
from typing import Self

import pytest


class Terminal:
    """A terminal that keeps what is written to it; the text is there when the block ends."""

    def __init__(self, columns: int, rows: int) -> None:
        self._reader, self.device = pty.openpty()
        fcntl.ioctl(self.device, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._stream = os.fdopen(os.dup(self.device), "w", encoding="utf-8")
        self._chunks: list[bytes] = []
        # Its buffer is a few kilobytes: somebody has to read while the program writes.
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        os.close(self.device)
        self._thread.join(timeout=30)
        os.close(self._reader)

    def _read(self) -> None:
        while True:
            try:
                chunk = os.read(self._reader, 65536)
            except OSError:
                # Linux says so when the last writer is gone.
                return
            if not chunk:
                return
            self._chunks.append(chunk)

    def stands_in(self, monkeypatch: pytest.MonkeyPatch, *, colours: bool = False) -> None:
        """Standard output is this terminal, in an environment that says nothing of sizes."""
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        if not colours:
            monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr(sys, "stdout", self._stream)

    def text(self) -> str:
        """Everything that was written."""
        return b"".join(self._chunks).decode().replace("\r\n", "\n")

    def lines(self) -> list[str]:
        """The lines that were written."""
        return self.text().splitlines()
