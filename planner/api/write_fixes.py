"""The files of a job written with the changes that make it fit, and read again."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.api.files import CheckOptions
from planner.api.fixes import FileJob
from planner.configs.writing.edits import Edit, applied
from planner.configs.writing.sharding_keys import Files
from planner.configs.writing.text import with_edits
from planner.configs.yaml_or_json import Document, read_document
from planner.errors import InputFileError, UsageError
from planner.files.reading import read_text, reading_instead
from planner.files.structured import toml_table
from planner.files.writing import check_writable


@dataclass(frozen=True, slots=True)
class Output:
    """Texts by the files to write, the config first;
    ``options`` are those that the new config is read with.
    """

    texts: Mapping[Path, str]
    options: CheckOptions


def output_of(job: FileJob, edits: Sequence[Edit], target: Path) -> Output:
    """What is written for ``edits``: the config as ``target``,
    each other changed file beside it under a name of its own.

    Raises:
        UsageError: a file of such a name is there and is not the config itself,
        or the name ends otherwise than the config's.
        InputFileError: a text cannot be changed in a faithful way.
    """
    files = job.files
    if target.suffix != files.config.path.suffix:
        raise UsageError(
            f"--write {target}: the name must end in {files.config.path.suffix or 'nothing'}, as "
            f"{job.config} does"
        )
    moved = {
        document.path: target.with_name(f"{target.stem}_{document.path.name}")
        for document in files.documents[1:]
        if any(edit.file == document.path for edit in edits)
    }
    every = (*edits, *_references(files, moved, target))
    # What only names a changed file is changed by that.
    for edit in every:
        if edit.file != files.config.path:
            moved.setdefault(edit.file, target.with_name(f"{target.stem}_{edit.file.name}"))
    texts = {}
    for document in files.documents:
        path = target if document is files.config else moved.get(document.path)
        if path is not None:
            texts[path] = _text(document, tuple(edit for edit in every if edit.file == document.path))
    for path, text in texts.items():
        _refuse_overwriting(path, text, job)
    return Output(texts, _options(job, moved))


def _text(document: Document, edits: Sequence[Edit]) -> str:
    """The new text, which the reader of every check reads as the old table with ``edits``."""
    path = document.path
    text = read_text(path)
    if not edits:
        return text
    text = with_edits(path, text, edits)
    with reading_instead({path.resolve(): text}):
        table = toml_table(path, text) if path.suffix == ".toml" else read_document(path).table
    if table != applied(document.table, edits):
        raise InputFileError(path, "cannot be changed with its comments kept: change these keys by hand")
    return text


def _options(job: FileJob, moved: Mapping[Path, Path]) -> CheckOptions:
    """Launch files are named, because one that stood beside the config need not stand beside the new one."""
    options, files = job.options, job.files
    if files.accelerate is not None:
        options = replace(options, accelerate=str(moved.get(files.accelerate.path, files.accelerate.path)))
    named = files.config.table.get("deepspeed") or files.accelerate is not None
    if files.deepspeed is not None and (options.deepspeed is not None or not named):
        options = replace(options, deepspeed=str(moved.get(files.deepspeed.path, files.deepspeed.path)))
    return options


def _references(files: Files, moved: Mapping[Path, Path], target: Path) -> list[Edit]:
    """Keys that name the DeepSpeed file, where that moves or is no longer found from the new place."""
    if files.deepspeed is None:
        return []
    old = files.deepspeed.path
    new = moved.get(old)
    found = []
    for document, place in (
        (files.config, ("deepspeed",)),
        (files.accelerate, ("deepspeed_config", "deepspeed_config_file")),
    ):
        named = _at(document, place)
        if document is None or not isinstance(named, str):
            continue
        lost = document is files.config and not any(
            path.is_file() for path in (target.parent / named, Path(named))
        )
        if new is not None or lost:
            found.append(Edit(document.path, place, str(new or old)))
    return found


def _at(document: Document | None, place: Sequence[str]) -> object:
    value: object = None if document is None else document.table
    for name in place:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _refuse_overwriting(path: Path, text: str, job: FileJob) -> None:
    """Only the config itself is overwritten, and only by its own name;
    what holds the very text already may stay.
    """
    if not path.exists() or path.resolve() == Path(job.config).resolve():
        return
    if path.is_file() and _same(path, text):
        return
    way = f"name another file, or {job.config} itself to change it in place"
    raise UsageError(f"--write: {path} is there already and is not overwritten; {way}")


def _same(path: Path, text: str) -> bool:
    try:
        return read_text(path) == text
    except InputFileError:
        return False


def write_all(output: Output) -> None:
    """Write the files, each at once; all texts are on the disk before the first gets its name.

    Raises:
        InputFileError: a folder or a file cannot be written.
    """
    for path in output.texts:
        check_writable(path)
    waiting: list[tuple[str, Path]] = []
    # The file in hand, which a failure names.
    path = next(iter(output.texts))
    try:
        for path, text in output.texts.items():
            waiting.append((_temporary(path, text), path))
        for name, path in waiting:
            if path.exists():
                shutil.copymode(path, name)
            Path(name).replace(path)
    except OSError as error:
        raise InputFileError(path, f"cannot be written: {error.strerror or error}") from None
    finally:
        for name, _ in waiting:
            Path(name).unlink(missing_ok=True)


def _temporary(path: Path, text: str) -> str:
    umask = os.umask(0)
    os.umask(umask)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", newline="", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    Path(stream.name).chmod(0o666 & ~umask)
    return stream.name
