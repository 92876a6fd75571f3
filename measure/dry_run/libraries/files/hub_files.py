"""Repositories of the Hub that nobody can ask: what they list, and what a download of one brings."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from measure.dry_run import lay_out
from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.importing import Change, OnImport

_FILES_OF_MODEL = ("config.json", "model.safetensors")


# How a program asks whether a repository is there.
_NOTHING = ["*"]


def install(imports: OnImport, guesses: Guesses, *, allowed: bool, has_rows: bool) -> None:
    """Change what asks the Hub.  ``allowed``: whether files may stand in for those that are not here;
    ``has_rows``: whether rows do for data sets.
    """
    imports.add("huggingface_hub._snapshot_download", _download(guesses, allowed=allowed, has_rows=has_rows))
    if allowed:
        imports.add("huggingface_hub.hf_api", _list_files(guesses))


def _list_files(guesses: Guesses) -> Change:
    """A repository of the Hub that nobody can ask holds a whole model, and no adapter."""

    def change(module: ModuleType) -> None:
        listed, described = module.HfApi.list_repo_files, module.repo_info

        def noted(repo_id: str) -> list[str]:
            guesses.assume("files of a repository", " and ".join(_FILES_OF_MODEL), repo_id)
            return list(_FILES_OF_MODEL)

        def list_repo_files(self: Any, repo_id: str, *args: Any, **kwargs: Any) -> Any:
            try:
                return listed(self, repo_id, *args, **kwargs)
            except OSError:
                return noted(repo_id)

        def repo_info(repo_id: str, *args: Any, **kwargs: Any) -> Any:
            try:
                return described(repo_id, *args, **kwargs)
            except OSError:
                files = [{"rfilename": name} for name in noted(repo_id)]
                return module.ModelInfo(id=repo_id, siblings=files)

        module.HfApi.list_repo_files = list_repo_files
        changed = {"list_repo_files": module.api.list_repo_files, "repo_info": repo_info}
        vars(module).update(changed)

    return change


def _download(guesses: Guesses, *, allowed: bool, has_rows: bool) -> Change:
    """A model comes without its weights, and with a tokenizer of words.  A data set that rows stand in for
    is there for who downloads nothing of it (axolotl 0.19.0 utils/data/shared.py _check_if_hub_dataset).
    """

    def change(module: ModuleType) -> None:
        load: Any = module.snapshot_download

        def snapshot_download(repo_id: str, *args: Any, local_dir: Any = None, **kwargs: Any) -> str:
            try:
                return str(load(repo_id, *args, local_dir=local_dir, **kwargs))
            except OSError:
                if (
                    has_rows
                    and kwargs.get("repo_type") == "dataset"
                    and kwargs.get("ignore_patterns") == _NOTHING
                ):
                    return tempfile.mkdtemp()
                # Who wants no download asks what is here, as Transformers does of a tokenizer's templates.
                if kwargs.get("repo_type") not in (None, "model") or kwargs.get("local_files_only"):
                    raise
                if not allowed:
                    guesses.lack_data()
                    guesses.refuse(
                        "is not in the Hub's cache; --data lets a folder without weights stand in", repo_id
                    )
                    raise
                folder = Path(local_dir or tempfile.mkdtemp())
                failed = lay_out.start(folder, repo_id, os.environ)
                if failed:
                    guesses.refuse(f"was not downloaded: {failed}", repo_id)
                    raise
            guesses.assume("download of a checkpoint", "no weights, and a tokenizer of words", repo_id)
            return str(folder)

        module.snapshot_download = snapshot_download  # type: ignore[attr-defined]

    return change
