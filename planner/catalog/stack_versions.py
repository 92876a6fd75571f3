"""Switches that follow from the version of one package: ``data/stacks/versions/<package>.toml``.

A file has ``schema``, ``package`` and ``oldest``, the oldest version that was read.  For each switch it has a list
``[[switches.<name>]]``, from old to new, of what holds ``since`` a version: ``value``, ``settled_by`` and ``source``.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.catalog.location import data_dir
from planner.domain.settled import SettledBy
from planner.errors import InputFileError, NotModelledError, UnknownNameError, UsageError
from planner.files.checking import validate
from planner.files.structured import read_toml

_VERSION = re.compile(r"([0-9]{1,5})(?:\.([0-9]{1,5}))?(?:\.([0-9]{1,5}))?(?:[.+-].{0,40})?")


class Setting(BaseModel):
    """One value of a stack with what settled it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    value: Any
    settled_by: SettledBy
    source: str = Field(min_length=1)


class _Since(Setting):
    """A value that holds from a version on."""

    since: str


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    schema_version: Literal[1] = Field(alias="schema")
    package: str = Field(min_length=1)
    oldest: str
    switches: dict[str, list[_Since]]


@cache
def versioned_packages() -> tuple[str, ...]:
    """Packages whose version changes a switch, sorted."""
    return tuple(sorted(path.stem for path in (data_dir() / "stacks" / "versions").glob("*.toml")))


@lru_cache(maxsize=64)
def version_settings(package: str, version: str) -> dict[str, Setting]:
    """What each switch is at ``version`` of ``package``; callers must not change the result.

    Raises:
        UnknownNameError: no switch follows from this package's version.
        UsageError: not a version.
        NotModelledError: older than what was read.
        InputFileError: the file is malformed or not in order.
    """
    if package not in versioned_packages():
        raise UnknownNameError("package with versions", package[:60], versioned_packages())
    path = data_dir() / "stacks" / "versions" / f"{package}.toml"
    file = _read(path)
    asked = _parsed(package, version)
    if asked < _parsed(package, file.oldest):
        raise NotModelledError(f"{package} {version} is not modelled: the oldest version that was read is {file.oldest}")
    return {name: _at(package, asked, steps) for name, steps in file.switches.items()}


def _read(path: Path) -> _File:
    file = validate(_File, read_toml(path), path)
    if file.package != path.stem:
        raise InputFileError(path, f"key 'package' is '{file.package}' and must be the file name")
    for name, steps in file.switches.items():
        versions = [_parsed(file.package, step.since) for step in steps]
        if not versions or versions != sorted(set(versions)) or versions[0] > _parsed(file.package, file.oldest):
            raise InputFileError(path, f"'switches.{name}' must run from the oldest version to newer ones, each version once")
    return file


def _at(package: str, asked: tuple[int, int, int], steps: list[_Since]) -> Setting:
    step = [step for step in steps if _parsed(package, step.since) <= asked][-1]
    return Setting(value=step.value, settled_by=step.settled_by, source=step.source)


def _parsed(package: str, version: str) -> tuple[int, int, int]:
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise UsageError(f"'{version[:60]}' is not a version of {package}; write three numbers such as 0.16.4")
    return int(match[1]), int(match[2] or 0), int(match[3] or 0)
