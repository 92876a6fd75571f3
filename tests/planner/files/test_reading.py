"""The one reader: regular files, counted while they are read, also where gzip unpacks them."""

from __future__ import annotations

import gzip
import os
import socket
import tracemalloc
import zlib
from pathlib import Path

import pytest

from planner.errors import InputFileError
from planner.files.reading import Bounds, read_bytes, read_lines, read_text
from planner.units import KIB, MIB

SMALL = Bounds(n_bytes=1 * MIB, line_bytes=100, n_lines=1000)


def packed_blanks(n_bytes: int) -> bytes:
    """One line of blanks, packed."""
    packer = zlib.compressobj(wbits=31)
    return b"".join(packer.compress(b" " * MIB) for _ in range(n_bytes // MIB)) + packer.flush()


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    """As many bytes as the limit are read, one more is not."""
    path = tmp_path / "f"
    path.write_bytes(b"x" * 1000)
    assert read_bytes(path, 1000) == b"x" * 1000
    with pytest.raises(InputFileError, match=r"f: larger than the limit of 999 B$"):
        read_bytes(path, 999)


def test_what_is_no_file_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, a pipe, a socket, a device; what is missing; a name that no system takes."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for path in (tmp_path, tmp_path / "pipe", tmp_path / "socket", Path("/dev/zero")):
            with pytest.raises(InputFileError, match="not a regular file"):
                read_bytes(path, KIB)
    with pytest.raises(InputFileError, match="no such file"):
        read_bytes(tmp_path / "none", KIB)
    for name in ("a\0b", "a" * 5000):
        with pytest.raises(InputFileError, match="cannot be read") as caught:
            read_bytes(tmp_path / name, KIB)
        assert "\0" not in str(caught.value)
        assert len(str(caught.value)) < 200


def test_the_folder_of_a_model_is_told_from_a_folder_of_files(tmp_path: Path) -> None:
    """Who gives it as a file meant the model."""
    (tmp_path / "config.json").touch()
    with pytest.raises(InputFileError, match=r"the folder of a model: give it as --model /"):
        read_text(tmp_path)


def test_a_file_that_is_swapped_for_a_pipe_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was looked at by name is looked at again once it is open, and opening never waits."""
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    regular = (tmp_path / "file").stat()
    monkeypatch.setattr(Path, "stat", lambda self, **options: regular)
    with pytest.raises(InputFileError, match="not a regular file"):
        read_bytes(tmp_path / "pipe", KIB)


def test_text_is_utf8_with_or_without_a_mark(tmp_path: Path) -> None:
    """The mark of some editors is no text; another coding is named with its line."""
    path = tmp_path / "f"
    path.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read_text(path) == "a = 1\n"
    path.write_bytes(b"a\nb\xff\n")
    with pytest.raises(InputFileError, match="f:2: not UTF-8 text"):
        read_text(path)
    path.write_text("a = 1\n", encoding="utf-16")
    with pytest.raises(InputFileError, match="UTF-16 text: save it as UTF-8"):
        read_text(path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("content", [b"", b"\n", b"a\n\nb\n", b"a\nb", b"x" * 100 + b"\n" + b"y" * 100])
def test_lines_come_without_their_ends(tmp_path: Path, content: bytes, packed: bool) -> None:
    """Of a plain file and of a packed one alike; a last line needs no end."""
    path = tmp_path / "f"
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    expected = content.removesuffix(b"\n").split(b"\n") if content else []
    assert list(read_lines(path, SMALL, packed=packed)) == expected


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a\n" + b"x" * 101 + b"\n", r"f:2: a line of more than 100 B"),
        (b"a\n" + b"x" * 500_000, r"f:2: a line of more than 100 B"),
        (b"\n" * 1001, r"f:1001: more than 1,000 lines"),
        (b"\n" * 2 * MIB, r"f:1001: more than 1,000 lines"),
    ],
    ids=["line", "endless line", "lines", "blank lines"],
)
def test_each_bound_of_lines_is_kept(tmp_path: Path, content: bytes, problem: str, packed: bool) -> None:
    """Bytes of a line, also of one without an end, and the number of lines."""
    path = tmp_path / "f"
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    with pytest.raises(InputFileError, match=problem):
        list(read_lines(path, SMALL, packed=packed))


def test_the_whole_is_bounded_as_it_unpacks(tmp_path: Path) -> None:
    """Lines that are each short enough, but together too long."""
    path = tmp_path / "f"
    path.write_bytes(gzip.compress((b"x" * 99 + b"\n") * 900, mtime=0))
    with pytest.raises(InputFileError, match="larger than the limit"):
        list(read_lines(path, Bounds(n_bytes=80_000, line_bytes=100, n_lines=1000), packed=True))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"plain text", "not gzip, or damaged"),
        (b"", "cut short"),
        (gzip.compress(b"a\n" * 500, mtime=0)[:-4], "cut short"),
        (gzip.compress(b"a\n" * 500, mtime=0)[:-8] + b"\0" * 8, "not gzip, or damaged"),
        (gzip.compress(b"a\n", mtime=0) * 2, "more after the end"),
        (gzip.compress(b"a\n", mtime=0) + b"tail", "more after the end"),
    ],
    ids=["plain", "empty", "torn", "wrong sum", "two", "tail"],
)
def test_what_is_not_one_gzip_stream_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    """One sentence that says what is wrong with the packing."""
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(InputFileError, match=problem):
        list(read_lines(path, SMALL, packed=True))


def test_a_small_file_of_many_blanks_takes_no_memory(tmp_path: Path) -> None:
    """64 MiB in one line, packed into 64 KiB: refused when the bound of a line is reached."""
    path = tmp_path / "f"
    path.write_bytes(packed_blanks(64 * MIB))
    tracemalloc.start()
    with pytest.raises(InputFileError, match="a line of more than"):
        list(read_lines(path, Bounds(n_bytes=512 * MIB, line_bytes=1 * MIB, n_lines=10), packed=True))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8 * MIB
