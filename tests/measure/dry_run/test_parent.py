"""What the child of a dry run finds in its environment."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from measure.dry_run.parent import _environment


@pytest.mark.parametrize("name", ["", "DATA_GYM_CACHE_DIR", "TIKTOKEN_CACHE_DIR"])
def test_vocabularies_of_tiktoken_are_those_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """tiktoken asks for two names, and else for the folder of temporary files.  The child may write beside
    them: tiktoken ends with an error where it may not.
    """
    for each in ("DATA_GYM_CACHE_DIR", "TIKTOKEN_CACHE_DIR"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    downloads = tmp_path / ("named" if name else "data-gym-cache")
    if name:
        monkeypatch.setenv(name, str(downloads))
    downloads.mkdir()
    (downloads / "cl100k").write_text("words", encoding="utf-8")
    (tmp_path / "child").mkdir()
    found = _environment(tmp_path / "child")
    seen = Path(found["TIKTOKEN_CACHE_DIR"])
    assert (seen / "cl100k").read_text(encoding="utf-8") == "words"
    assert seen.is_relative_to(tmp_path / "child")
    assert Path(found["TMPDIR"]).is_relative_to(tmp_path / "child")


def test_a_machine_without_vocabularies_of_tiktoken_has_a_folder_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a program loads from a file of its own is kept there."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "none"))
    assert not list(Path(_environment(tmp_path)["TIKTOKEN_CACHE_DIR"]).iterdir())
