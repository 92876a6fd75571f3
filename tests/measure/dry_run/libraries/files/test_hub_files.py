"""Repositories of the Hub that nobody can ask: a model comes without weights, if that is allowed."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from measure.dry_run import lay_out
from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.files.hub_files import _download


def library(monkeypatch: pytest.MonkeyPatch, guesses: Guesses, *, allowed: bool) -> Any:
    """What huggingface_hub has, without a network; folders are made by their names alone."""

    def load(repo_id: str, **_: Any) -> str:
        if repo_id == "in/cache":
            return "cached"
        raise OSError("offline")

    def start(folder: Path, model: str, variables: Any) -> str:
        del variables
        return "" if folder.name and model == "known/model" else f"{model} is not known"

    monkeypatch.setattr(lay_out, "start", start)
    module: Any = ModuleType("_snapshot_download")
    module.snapshot_download = load
    _download(guesses, allowed=allowed, has_rows=allowed)(module)
    return module


def test_a_download_brings_a_folder_without_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Into the folder that the program names; what is in the cache is taken from there."""
    guesses = Guesses()
    module = library(monkeypatch, guesses, allowed=True)
    assert module.snapshot_download("in/cache") == "cached"
    assert not guesses.listed()
    assert module.snapshot_download("known/model", local_dir=tmp_path) == str(tmp_path)
    assert [each.origin for each in guesses.listed()] == ["known/model"]
    assert not guesses.refusals


@pytest.mark.parametrize(("model", "allowed"), [("known/model", False), ("no/model", True)])
def test_one_that_cannot_stand_in_is_refused_by_name(
    model: str, *, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing may stand in, and where nobody knows the model."""
    guesses = Guesses()
    module = library(monkeypatch, guesses, allowed=allowed)
    with pytest.raises(OSError, match="offline"):
        module.snapshot_download(model)
    assert [name for name, _ in guesses.refusals] == [model]


@pytest.mark.parametrize("asked", [{"repo_type": "dataset"}, {"local_files_only": True}])
def test_a_data_set_is_no_model_and_what_is_not_here_is_not(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    """Both fail as they would."""
    guesses = Guesses()
    module = library(monkeypatch, guesses, allowed=True)
    with pytest.raises(OSError, match="offline"):
        module.snapshot_download("known/model", **asked)
    assert not guesses.refusals


def test_a_data_set_that_rows_stand_in_for_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a program that only asks whether it is (Axolotl); nothing is in its folder."""
    module = library(monkeypatch, Guesses(), allowed=True)
    asked = {"repo_type": "dataset", "ignore_patterns": ["*"]}
    folder = Path(module.snapshot_download("some/rows", **asked))
    assert list(folder.iterdir()) == []
    folder.rmdir()
    with pytest.raises(OSError, match="offline"):
        library(monkeypatch, Guesses(), allowed=False).snapshot_download("some/rows", **asked)
