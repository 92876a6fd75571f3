"""What the child of a dry run finds in its environment."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from measure.dry_run.parent import _environment


def test_vocabularies_of_tiktoken_are_those_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child has a folder for temporary files of its own, where tiktoken would look for downloads."""
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "of-the-caller"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    (tmp_path / "child").mkdir()
    found = _environment(tmp_path / "child")
    assert found["DATA_GYM_CACHE_DIR"] == str(tmp_path / "of-the-caller" / "data-gym-cache")
    assert Path(found["TMPDIR"]).is_relative_to(tmp_path / "child")


def test_a_folder_for_vocabularies_that_the_caller_names_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tiktoken asks for two names."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("DATA_GYM_CACHE_DIR", "/some/folder")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "/another/folder")
    found = _environment(tmp_path)
    assert found["DATA_GYM_CACHE_DIR"] == "/some/folder"
    assert found["TIKTOKEN_CACHE_DIR"] == "/another/folder"
