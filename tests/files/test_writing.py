"""Files are written whole or not at all, and what cannot become a file is refused before any work is done."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import pytest

from planner.errors import InputFileError
from planner.files.writing import check_writable, whole_file


@pytest.mark.parametrize("name", ["x" * 5000, "no/such/folder/file", "folder", "loop/file"])
def test_what_cannot_become_a_file_is_refused(name: str, tmp_path: Path) -> None:
    """In one short sentence, whatever is wrong with the name."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputFileError, match="cannot be written") as told:
        check_writable(tmp_path / name)
    assert "x" * 100 not in told.value.problem


def test_a_name_as_long_as_the_disk_takes_can_be_written(tmp_path: Path) -> None:
    """The temporary name is no longer than the target's."""
    target = tmp_path / ("x" * 255)
    check_writable(target)
    with whole_file(target) as stream:
        stream.write(b"all of it")
    assert [each.name for each in tmp_path.iterdir()] == [target.name]
    assert target.read_bytes() == b"all of it"


def _interrupted(stream: IO[bytes]) -> None:
    stream.write(b"half")
    raise KeyboardInterrupt


def test_an_error_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    """As does an interrupt."""
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), whole_file(target) as stream:
        _interrupted(stream)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
