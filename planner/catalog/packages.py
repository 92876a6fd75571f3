"""Facts of software packages, by version: ``data/packages/<package>.toml``.

A file is ``schema``, ``package``, ``read`` (ranges of versions whose facts are known, each ``[first, last]``)
and the tables of a stack (``defaults``, ``quantized``, ``switches``, ``usual``).  Each name has a list, from
old to new, of what holds ``since`` a version: ``value``, ``settled_by`` and ``source``.  Without ``since`` it
holds from the first version on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.catalog.location import data_dir
from planner.domain.uncertainty.prior import SettledBy
from planner.errors import InputFileError, NotModelledError, UnknownNameError, UsageError
from planner.files.checking import validate
from planner.files.structured import read_toml

TABLES = ("defaults", "quantized", "switches", "usual")
_VERSION = re.compile(r"([0-9]{1,5})(?:\.([0-9]{1,5}))?(?:\.([0-9]{1,5}))?(?:[.+-].{0,40})?")
_Version = tuple[int, int, int]


class Setting(BaseModel):
    """One value of a package or a stack, with what settled it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    value: Any
    settled_by: SettledBy
    source: str = Field(min_length=1)


class _Since(Setting):
    """A value that holds from a version on; from the first one that was read where none is named."""

    since: str = ""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    schema_version: Literal[1] = Field(alias="schema")
    package: str = Field(min_length=1)
    read: list[list[str]] = Field(min_length=1)
    defaults: dict[str, list[_Since]] = {}
    quantized: dict[str, list[_Since]] = {}
    switches: dict[str, list[_Since]] = {}
    usual: dict[str, list[_Since]] = {}


@cache
def package_names() -> tuple[str, ...]:
    """Packages with facts, sorted."""
    return tuple(sorted(path.stem for path in (data_dir() / "packages").glob("*.toml")))


def package_path(package: str) -> Path:
    """The file with the facts of ``package``."""
    return data_dir() / "packages" / f"{package}.toml"


@lru_cache(maxsize=256)
def facts_of(package: str, version: str) -> Mapping[str, Mapping[str, Setting]]:
    """Table -> name -> what holds at ``version`` of ``package``; callers must not change the result.

    Raises:
        UnknownNameError: nothing is known of this package.
        UsageError: not a version.
        NotModelledError: older than what was read.
        InputFileError: the file is malformed or not in order.
    """
    file, asked = _file(package), parsed_version(package, version)
    if asked < parsed_version(package, file.read[0][0]):
        raise NotModelledError(
            f"{package} {version} is not modelled: the oldest version that was read is {file.read[0][0]}"
        )
    return {table: _at(package, asked, getattr(file, table)) for table in TABLES}


@lru_cache(maxsize=256)
def unread_note(package: str, version: str) -> str:
    """A phrase where ``version`` lies outside the ranges that were read,
    in which the nearest older facts stand in for it.

    Raises:
        As :func:`facts_of`.
    """
    file, asked = _file(package), parsed_version(package, version)
    ranges = [(parsed_version(package, first), parsed_version(package, last)) for first, last in file.read]
    if any(first <= asked <= last for first, last in ranges):
        return ""
    last = [text for (_, end), (_, text) in zip(ranges, file.read, strict=True) if end < asked][-1]
    known = " and ".join(" to ".join(dict.fromkeys(each)) for each in file.read)
    return f"{package} {version}: {known} were read, {last} stands in"


def is_known(package: str, version: str) -> bool:
    """Whether facts of this version are known, be it by the nearest older one."""
    try:
        facts_of(package, version)
    except (UsageError, NotModelledError):
        return False
    return True


def changes_of(package: str) -> tuple[str, ...]:
    """Versions of ``package`` since which one of its facts is another, from old to new."""
    file = _file(package)
    since = {step.since for table in TABLES for steps in getattr(file, table).values() for step in steps}
    return tuple(sorted(since - {""}, key=lambda each: parsed_version(package, each)))


def _file(package: str) -> _File:
    if package not in package_names():
        raise UnknownNameError("package with versions", package[:60], package_names())
    return _read(package_path(package))


@lru_cache(maxsize=64)
def _read(path: Path) -> _File:
    file = validate(_File, read_toml(path), path)
    if file.package != path.stem:
        raise InputFileError(path, f"key 'package' is '{file.package}' and must be the file name")
    ends = [parsed_version(file.package, each) for known in file.read for each in known]
    if any(len(known) != 2 for known in file.read) or ends != sorted(ends):
        raise InputFileError(
            path, "key 'read' must hold pairs of a first and a last version, from old to new"
        )
    for table in TABLES:
        for name, steps in getattr(file, table).items():
            since = [_start(file.package, step, ends[0]) for step in steps]
            if not since or since != sorted(set(since)) or since[0] < ends[0]:
                raise InputFileError(
                    path,
                    f"'{table}.{name}' must run from the oldest version to newer ones, each version once",
                )
    return file


def _at(package: str, asked: _Version, facts: Mapping[str, list[_Since]]) -> dict[str, Setting]:
    """What holds at a version; names that the package settles only later are left out."""
    found = {
        name: [step for step in steps if _start(package, step, (0, 0, 0)) <= asked]
        for name, steps in facts.items()
    }
    return {
        name: Setting(value=steps[-1].value, settled_by=steps[-1].settled_by, source=steps[-1].source)
        for name, steps in found.items()
        if steps
    }


def _start(package: str, step: _Since, first: _Version) -> _Version:
    return parsed_version(package, step.since) if step.since else first


def parsed_version(package: str, version: str) -> _Version:
    """The three numbers of a version of ``package``, by which versions compare.

    Raises:
        UsageError: it is no version.
    """
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise UsageError(
            f"'{version[:60]}' is not a version of {package}; write three numbers such as 0.16.4"
        )
    return int(match[1]), int(match[2] or 0), int(match[3] or 0)
