"""Stack entries of ``data/stacks``: which software, at which version,
and what it does where the user says nothing.

A file is ``<id>.toml`` (``@`` of the id written as ``-``): ``schema``, ``id``, ``title``, ``aliases`` and
``versions``, the packages that it runs, from the lowest to the one that people call.  Their facts
(:mod:`planner.catalog.packages`) are laid over each other in that order, and the tables of the file
over them: ``defaults``, ``quantized`` (what differs over a quantised base), ``switches`` and ``usual``, each
name with ``value``, ``settled_by`` and ``source``.  What a file says itself stands for a script or a
configuration that the stack hands to its packages.  With ``extends = "<id>"`` a file starts from the whole of
another stack.  A default also takes the place of what lower layers say of it over quantised bases.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

from planner.catalog.index import fold_name
from planner.catalog.location import data_dir
from planner.catalog.packages import (
    TABLES,
    Setting,
    changes_of,
    facts_of,
    is_known,
    package_path,
    parsed_version,
    unread_note,
)
from planner.domain.stack import Stack
from planner.domain.stack_defaults import StackDefaults
from planner.domain.uncertainty.prior import SettledBy
from planner.errors import InputFileError, UnknownNameError, UsageError, show
from planner.files.checking import validate
from planner.files.structured import read_toml

DEFAULT_NAMES = tuple(field.name for field in fields(StackDefaults))
_NOT_SWITCHES = frozenset(
    {"id", "title", "extends", "defaults", "quantized_defaults", "settled", "versions", "unread", "usual"}
)
SWITCH_NAMES = tuple(field.name for field in fields(Stack) if field.name not in _NOT_SWITCHES)
_SAID: SettledBy = "document_text"
_Tables = Mapping[str, Mapping[str, Setting]]
_FILE_NAME = re.compile(r"[A-Za-z0-9@._-]{1,60}")
# Numbers and their allowed range; everything else is a closed list of words or a flag.
_RANGES: dict[str, tuple[float, float]] = {
    "lora_rank": (1, 65_536),
    "lora_dropout": (0.0, 0.99),
    "vllm_groups": (0, 65_536),
    "host_parts": (1, 64),
    "zero12_bucket_elements": (0, 1_000_000_000_000),
    "zero3_bucket_elements": (-1, 1_000_000_000_000),
    "zero3_prefetch_elements": (-1, 1_000_000_000_000),
    "zero3_persistence_elements": (-1, 1_000_000_000_000),
    "zero3_live_elements": (0, 1_000_000_000_000),
    "zero3_reuse_elements": (0, 1_000_000_000_000),
    "zero3_sub_group_elements": (0, 1_000_000_000_000),
    "foreach_step_copies": (0, 8),
    "flash_generation": (1, 4),
    "offloaded_inputs_kept": (0, 100),
    "roundup_divisions": (0, 64),
    "max_split_mib": (0, 1_000_000),
}


class StackEntry(BaseModel):
    """One file of ``data/stacks`` as it stands."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    schema_version: Literal[1] = Field(alias="schema")
    id: str = Field(min_length=1)
    title: str = Field(min_length=1)
    aliases: list[str] = []
    extends: str | None = None
    versions: dict[str, str] = {}
    defaults: dict[str, Setting] = {}
    quantized: dict[str, Setting] = {}
    switches: dict[str, Setting] = {}
    usual: dict[str, Setting] = {}


def stack_ids() -> tuple[str, ...]:
    """Ids of all stacks in the catalog, sorted."""
    return tuple(sorted({entry_id for entry_id, _ in _names().values()}))


def other_versions(stack_id: str) -> tuple[str, ...]:
    """Ids of the same software at other versions, by the names of the files alone;
    variants of a version are left out.
    """
    name = stack_id.partition("@")[0]
    files = sorted((data_dir() / "stacks").glob(f"{name}-*.toml"))
    found = (re.fullmatch(rf"{re.escape(name)}-([0-9.]+)", path.stem) for path in files)
    return tuple(each for match in found if match and (each := f"{name}@{match[1]}") != stack_id)


def turning_versions(stack_id: str) -> tuple[str, ...]:
    """Versions of the package that a stack is named by which its name stands for, too, newest first: of the
    same first number, since the last file of older ones, and of them those since which a fact was another.
    None where the name says the version.
    """
    newest = dict(load_stack(stack_id).versions).get(stack_id)
    if newest is None:
        return ()
    asked = parsed_version(stack_id, newest)
    files = (dict(load_stack(each).versions)[stack_id] for each in other_versions(stack_id))
    after = max([(asked[0], -1), *(parsed_version(stack_id, each)[:2] for each in files)])
    return tuple(
        each
        for each in reversed(changes_of(stack_id))
        if after < parsed_version(stack_id, each)[:2] and parsed_version(stack_id, each) < asked
    )


def nearest_version(stack_id: str, package: str, version: str) -> str:
    """Of a stack and its :func:`other_versions` the one whose ``package`` is nearest to ``version``."""
    asked = parsed_version(package, version)

    def distance(each: str) -> tuple[int, int]:
        usual = parsed_version(package, dict(load_stack(each).versions)[package])
        return abs(usual[0] - asked[0]), abs(usual[1] - asked[1])

    return min((stack_id, *other_versions(stack_id)), key=distance)


def at_versions(
    stack_id: str, package: str, version_of: Callable[[str], str | None]
) -> tuple[str, tuple[str, ...]]:
    """The stack whose ``package`` is nearest to its version, and others of its packages at theirs, as
    ``name==version``; of versions that were not read nothing is said.
    """
    version = version_of(package)
    stack = nearest_version(stack_id, package, version) if version else stack_id
    others = tuple(
        f"{name}=={here}"
        for name, usual in load_stack(stack).versions
        if (here := version_of(name)) not in (None, usual) and is_known(name, str(here))
    )
    return stack, others


@lru_cache(maxsize=64)
def load_stack(name: str, versions: tuple[tuple[str, str], ...] = ()) -> Stack:
    """The stack with this id or alias, for example ``hf-trainer@5``,
    with other ``versions`` of some packages where given.

    Raises:
        UnknownNameError: no such stack; says the nearest.
        UsageError: not a version, or a package that the stack does not run.
        NotModelledError: a version older than what was read.
        InputFileError: the file is malformed, or lacks a switch or its source.
    """
    path = data_dir() / "stacks" / f"{name.replace('@', '-')}.toml"
    # The id is tried as a file name first, so that the usual case reads one file;
    # a name with a path in it never is one.
    if not (_FILE_NAME.fullmatch(name) and path.is_file()):
        found = _names().get(fold_name(name))
        if found is None:
            raise UnknownNameError("stack", name, stack_ids(), hint="plan stacks lists them")
        path = found[1]
    entry = validate(StackEntry, read_toml(path), path)
    if path.stem != entry.id.replace("@", "-"):
        raise InputFileError(
            path, f"key 'id' is '{entry.id}' and must be the file name, with '@' before the version"
        )
    return _stack_of(entry, path, dict(versions))


def with_switches(stack: Stack, given: Mapping[str, str], origin: str) -> Stack:
    """``stack`` with other values of some switches, written as text: ``true``, a number, a word,
    or words joined by ``+``.

    Raises:
        UnknownNameError: no such switch; says the nearest.
        UsageError: not a value that the switch can have.
    """
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in SWITCH_NAMES:
            raise UnknownNameError("switch", name[:60], SWITCH_NAMES, hint="plan stacks --json has them")
        annotation = _types(Stack)[name]
        value = _from_text(text, annotation)
        low, high = _RANGES.get(name, (-math.inf, math.inf))
        if not _is_a(value, annotation) or (annotation is int and not low <= value <= high):
            wanted = f"from {low} to {high}" if name in _RANGES else _words(annotation)
            raise UsageError(f"switch {name} must be {wanted}, but it is '{text[:60]}'")
        values[name] = value
    kept = tuple(entry for entry in stack.settled if entry[0] not in values)
    settled = tuple((name, _SAID, f"said for this job: {origin}") for name in values)
    return replace(stack, settled=(*kept, *settled), **values)


def _from_text(text: str, annotation: Any) -> Any:
    """``text`` in the type of a switch; text itself where it is none of that type."""
    if annotation is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if annotation is int:
        digits = text.removeprefix("-")
        return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 16 else text
    return tuple(text.split("+")) if get_origin(annotation) is tuple else text


@dataclass(frozen=True, slots=True)
class _Layers:
    """What a stack is made of: versions by package,
    then packages and tables of stack files from the lowest to the highest.
    """

    versions: Mapping[str, str]
    order: tuple[str | tuple[Path, _Tables], ...]
    root: str
    """Id of the stack at the end of the row of ``extends``; empty where there is none."""

    def settings(self, versions: Mapping[str, str]) -> _Tables:
        """Table -> name -> what holds, with these ``versions``.

        Raises:
            InputFileError: names the file of the layer that has an unknown name or a value that cannot be.
        """
        tables: dict[str, dict[str, Setting]] = {table: {} for table in TABLES}
        for layer in self.order:
            path, facts = (
                (package_path(layer), facts_of(layer, versions[layer])) if isinstance(layer, str) else layer
            )
            for table in TABLES:
                _check(facts[table], table, path)
            for name in facts["defaults"]:
                tables["quantized"].pop(name, None)
            for table in TABLES:
                tables[table].update(facts[table])
        return tables


def _layers(entry: StackEntry, path: Path, above: tuple[str, ...] = ()) -> _Layers:
    """The layers of ``entry`` over those of the stack it extends.

    ``above``: the stacks that lie over ``entry``.
    """
    base = _Layers({}, (), "")
    if entry.extends is not None:
        if entry.extends in (*above, entry.id):
            raise InputFileError(path, f"key 'extends' names '{entry.extends}', which extends this stack")
        base_path = path.with_name(f"{entry.extends.replace('@', '-')}.toml")
        if not (_FILE_NAME.fullmatch(entry.extends) and base_path.is_file()):
            raise InputFileError(path, f"key 'extends' names '{entry.extends}', which is no stack")
        found = validate(StackEntry, read_toml(base_path), base_path)
        base = _layers(found, base_path, (*above, entry.id))
        base = replace(base, root=base.root or found.id)
    own = {table: getattr(entry, table) for table in TABLES}
    added = tuple(package for package in entry.versions if package not in base.versions)
    return _Layers({**base.versions, **entry.versions}, (*base.order, *added, (path, own)), base.root)


def _who_runs(package: str) -> str:
    """What to ask for instead, where a stack does not run ``package``."""
    others = [each for each in stack_ids() if package in dict(load_stack(each).versions)]
    return f"these do: {', '.join(f'--stack {each}' for each in others)}" if others else "no stack does"


def _stack_of(entry: StackEntry, path: Path, asked: Mapping[str, str]) -> Stack:
    layers = _layers(entry, path)
    if strange := sorted(asked.keys() - layers.versions.keys()):
        names = ", ".join(sorted(layers.versions))
        raise UsageError(
            f"stack '{entry.id}' does not run '{show(strange[0])}', only {names}; {_who_runs(strange[0])}"
        )
    versions = {**layers.versions, **asked}
    tables = layers.settings(versions)
    values = _values(tables["defaults"], DEFAULT_NAMES, ("defaults", path))
    over_quantized = _values(tables["quantized"], tuple(tables["quantized"]), ("quantized", path))
    changed = {name: value for name, value in over_quantized.items() if value != values[name]}
    switches = _values(tables["switches"], SWITCH_NAMES, ("switches", path))
    usual = _values(tables["usual"], tuple(tables["usual"]), ("usual", path))
    settled = list(tables["switches"].items())
    settled += [(f"defaults.{name}", setting) for name, setting in tables["defaults"].items()]
    settled += [(f"quantized.{name}", tables["quantized"][name]) for name in changed]
    return Stack(
        id=entry.id,
        title=entry.title,
        extends=layers.root,
        usual=tuple(usual.items()),
        defaults=StackDefaults(**values),
        versions=tuple(sorted(versions.items())),
        unread=tuple(note for package, version in asked.items() if (note := unread_note(package, version))),
        quantized_defaults=StackDefaults(**values | changed) if changed else None,
        settled=tuple((name, setting.settled_by, setting.source) for name, setting in settled),
        **switches,
    )


def _values(
    settings: Mapping[str, Setting], names: tuple[str, ...], place: tuple[str, Path]
) -> dict[str, Any]:
    """Values by name, which were checked; all of ``names`` must be there."""
    if missing := [name for name in names if name not in settings]:
        raise InputFileError(place[1], f"missing key '{place[0]}.{missing[0]}'")
    return {name: _given(settings[name]) for name in names}


def _given(setting: Setting) -> Any:
    return tuple(setting.value) if isinstance(setting.value, list) else setting.value


def _check(settings: Mapping[str, Setting], table: str, path: Path) -> None:
    """Raises: InputFileError where a table of a file has a name that is none of its kind,
    or a value that this name cannot have.
    """
    owner, known = (Stack, SWITCH_NAMES) if table == "switches" else (StackDefaults, DEFAULT_NAMES)
    for name, setting in settings.items():
        if name not in known:
            raise InputFileError(path, f"unknown key '{table}.{name}'")
        annotation, value = _types(owner)[name], _given(setting)
        low, high = _RANGES.get(name, (-math.inf, math.inf))
        if not _is_a(value, annotation):
            wanted, shown = _words(annotation), f"{str(setting.value)[:60]!r}"
        elif name in _RANGES and not low <= value <= high:
            wanted, shown = f"from {low} to {high}", str(value)
        else:
            continue
        raise InputFileError(path, f"key '{table}.{name}.value' must be {wanted}, but it is {shown}")


@cache
def _types(owner: Any) -> dict[str, Any]:
    return typing.get_type_hints(owner)


def _is_a(value: Any, annotation: Any) -> bool:
    """Whether ``value`` is of a type that stacks use: a closed list of words, a tuple of those,
    or a plain type.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and bool(value) and all(_is_a(item, arguments[0]) for item in value)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is annotation


def _words(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(get_args(annotation))}"
    if get_origin(annotation) is tuple:
        return f"a list of {_words(get_args(annotation)[0]).removeprefix('one of ')}"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[annotation]


@cache
def _names() -> Mapping[str, tuple[str, Path]]:
    """Folded id or alias -> (id, file), over all files."""
    names: dict[str, tuple[str, Path]] = {}
    for path in sorted((data_dir() / "stacks").glob("*.toml")):
        entry = validate(StackEntry, read_toml(path), path)
        for name in dict.fromkeys(map(fold_name, (entry.id, *entry.aliases))):
            if name in names:
                raise InputFileError(path, f"the name '{name}' already belongs to '{names[name][0]}'")
            names[name] = (entry.id, path)
    return names
