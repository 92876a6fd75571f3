"""Alias -> id index of a catalog folder, so that looking up one entry reads two small files instead of all.

An entry is ``<id>.toml`` with the keys ``id`` and ``aliases``, other names of exactly this entry.  Optional
is ``variant_of``: names that it shares with other entries, such as ``a100``, which are too little to choose
by.  A file with ``[[cards]]`` holds several small entries; what ``[common]`` says holds for each of them.
``python -m planner.catalog.index`` writes ``index.json`` anew in ``data/gpus`` and ``data/models``.  Until
then, all entries are read where a file was added or taken away, which takes some 50 ms.  It is JSON, which
Python reads eight times as fast as TOML: every command that names a model reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from planner.catalog.location import data_dir
from planner.errors import InputFileError
from planner.files.reading import MAX_CONFIG_BYTES, read_text
from planner.files.structured import json_value, read_toml

INDEX_NAME = "index.json"
# Tables that live beside the entries and are none themselves.
_TABLES = frozenset({"sizes.toml", "stored.toml"})
INDEXED_FOLDERS = ("gpus", "models")
_SEPARATORS = re.compile(r"[-_\s]+")


@dataclass(frozen=True, slots=True)
class CatalogIndex:
    """Every name of a catalog folder.
    Keys of ``aliases`` and ``variants`` are folded with :func:`fold_name`.

    ``files``: the file (without ``.toml``) of each entry that shares one with others.
    """

    ids: tuple[str, ...]
    aliases: Mapping[str, str]
    variants: Mapping[str, tuple[str, ...]]
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def find(self, name: str) -> str | None:
        """Id that ``name`` (an id or an alias, in any spelling) stands for, or ``None``."""
        return self.aliases.get(fold_name(name))

    def variants_of(self, name: str) -> tuple[str, ...]:
        """Ids among which ``name`` does not choose; empty when it is not such a name."""
        return self.variants.get(fold_name(name), ())


def fold_name(name: str) -> str:
    """Spelling-independent form of a name: lower case, without blanks, hyphens and underscores."""
    return _SEPARATORS.sub("", name.lower())


def build_index(folder: Path) -> dict[str, Any]:
    """Index of all entries of ``folder`` as the table that ``index.json`` holds.

    Raises:
        InputFileError: an id that is not the file name, an empty name, or a name that two entries claim.
    """
    ids: list[str] = []
    aliases: dict[str, str] = {}
    variants: dict[str, list[str]] = {}
    files: dict[str, str] = {}
    for path in sorted(folder.glob("*.toml")):
        if not _is_entry(path):
            continue
        for entry in entries_of(path):
            entry_id = entry["id"]
            ids.append(entry_id)
            if entry_id != path.stem:
                files[entry_id] = path.stem
            for key in dict.fromkeys((fold_name(entry_id), *_folded_names(entry, "aliases", path))):
                if key in aliases:
                    raise InputFileError(path, f"the name '{key}' already belongs to '{aliases[key]}'")
                aliases[key] = entry_id
            for key in _folded_names(entry, "variant_of", path):
                variants.setdefault(key, []).append(entry_id)
    _check_variants(folder, aliases, variants)
    index = {"ids": ids, "aliases": dict(sorted(aliases.items())), "variants": dict(sorted(variants.items()))}
    return index | ({"files": dict(sorted(files.items()))} if files else {})


def entries_of(path: Path) -> list[dict[str, Any]]:
    """The entries of one file: the file itself, or each of its ``[[cards]]`` over what ``[common]`` says.

    A card's own keys win; its ``source`` is added to the common one,
    and of the common ``[origins]`` it has those of its numbers.

    Raises:
        InputFileError: unreadable, or an ``id`` that is missing or not the name of a file with one entry.
    """
    data = read_toml(path)
    if "cards" not in data:
        if data.get("id") != path.stem:
            raise InputFileError(
                path, f"key 'id' is {data.get('id')!r} and must be the file name, '{path.stem}'"
            )
        return [data]
    common, cards = data.get("common", {}), data["cards"]
    if set(data) - {"common", "cards"} or not isinstance(common, dict) or not isinstance(cards, list):
        raise InputFileError(path, "a file of several cards holds [common] and [[cards]] alone")
    if not all(isinstance(card, dict) and isinstance(card.get("id"), str) for card in cards):
        raise InputFileError(path, "each of [[cards]] must have an 'id'")
    return [_over(common, card) for card in cards]


def _over(common: Mapping[str, Any], card: Mapping[str, Any]) -> dict[str, Any]:
    sources = [str(each["source"]) for each in (card, common) if "source" in each]
    origins = {**common.get("origins", {}), **card.get("origins", {})}
    own = {key: origin for key, origin in origins.items() if key in card or key in common}
    return {**common, **card, "source": " ".join(sources), "origins": own}


def read_index(folder: Path) -> CatalogIndex:
    """The stored index of ``folder``, or one of the entries as they are now, where files were added or taken
    away since it was written; found once per process unless file or folder changes.

    Raises:
        InputFileError: missing, malformed, or a name that points to an id that is not in it.
    """
    path = folder / INDEX_NAME
    changed_ns = path.stat().st_mtime_ns if path.is_file() else 0
    return _index_now(path, changed_ns, folder.stat().st_mtime_ns if folder.is_dir() else 0)


def _is_entry(path: Path) -> bool:
    return path.suffix == ".toml" and path.name not in _TABLES


@lru_cache(maxsize=8)
def _index_now(path: Path, changed_ns: int, folder_changed_ns: int) -> CatalogIndex:
    del folder_changed_ns  # part of the cache key only
    stored = _parsed_index(path, changed_ns)
    files = {stored.files.get(entry_id, entry_id) for entry_id in stored.ids}
    if files == {each.stem for each in path.parent.iterdir() if _is_entry(each)}:
        return stored
    index = build_index(path.parent)
    variants = {name: tuple(targets) for name, targets in index["variants"].items()}
    return CatalogIndex(tuple(index["ids"]), index["aliases"], variants, index.get("files", {}))


@lru_cache(maxsize=8)
def _parsed_index(path: Path, changed_ns: int) -> CatalogIndex:
    del changed_ns  # part of the cache key only
    data = json_value(path, read_text(path, MAX_CONFIG_BYTES))
    data = data if isinstance(data, dict) else {}
    ids, aliases, variants, files = (data.get(key, []) for key in ("ids", "aliases", "variants", "files"))
    files = files or {}
    if not (
        isinstance(ids, list)
        and isinstance(aliases, dict)
        and isinstance(variants, dict)
        and isinstance(files, dict)
    ):
        raise InputFileError(path, "not a catalog index: it needs 'ids', 'aliases' and 'variants'")
    known = set(map(str, ids))
    for name, targets in [(name, [target]) for name, target in aliases.items()] + list(variants.items()):
        dangling = [str(target) for target in targets if str(target) not in known]
        if dangling:
            raise InputFileError(path, f"the name '{name}' points to '{dangling[0]}', which is not an entry")
    return CatalogIndex(
        tuple(ids), aliases, {name: tuple(targets) for name, targets in variants.items()}, files
    )


def format_index(index: Mapping[str, Any]) -> str:
    """``index`` as the text of ``index.json``."""
    return json.dumps(index, ensure_ascii=False, indent=1) + "\n"


def main() -> None:
    """Write ``index.json`` in every indexed folder that has entries."""
    for name in INDEXED_FOLDERS:
        folder = data_dir() / name
        index = build_index(folder) if folder.is_dir() else {"ids": []}
        if index["ids"]:
            (folder / INDEX_NAME).write_text(format_index(index), encoding="utf-8")


def _folded_names(entry: Mapping[str, Any], key: str, path: Path) -> list[str]:
    names = entry.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) and fold_name(name) for name in names):
        raise InputFileError(path, f"key '{key}' must be a list of names")
    return [fold_name(name) for name in names]


def _check_variants(folder: Path, aliases: Mapping[str, str], variants: Mapping[str, list[str]]) -> None:
    """A shared name must be shared, and must not also be the plain name of one entry."""
    for key, targets in variants.items():
        if key in aliases:
            raise InputFileError(
                folder / f"{targets[0]}.toml", f"the name '{key}' already belongs to '{aliases[key]}'"
            )
        if len(set(targets)) < 2:
            raise InputFileError(
                folder / f"{targets[0]}.toml", f"'{key}' in 'variant_of' is shared with no other entry"
            )


if __name__ == "__main__":
    main()
