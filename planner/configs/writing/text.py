"""The text of a file with keys set: comments, order and everything else stay as they are.

The text must have passed the bounded reader of its format before: nothing here looks for aliases or depth.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.configs.writing.edits import REMOVED, Edit, applied
from planner.configs.yaml_or_json import Document
from planner.errors import InputFileError, show
from planner.files.structured import toml_table

_BLANK = re.compile(r"[ \t\r\n]*")
_SEQUENCE = re.compile(r"^(?P<outer> *)[^\s#-][^\n]*:[ \t]*(?:#[^\n]*)?\n(?P<inner> *)- ", re.MULTILINE)
_TABLE = re.compile(r"^[^\s#-][^\n]*:[ \t]*(?:#[^\n]*)?\n(?P<inner> +)[^\s#-]", re.MULTILINE)
_LONGEST_LINE = 1_000_000


def with_edits(path: Path, text: str, edits: Sequence[Edit]) -> str:
    """``text`` of the file ``path`` with ``edits``,
    in the format that its suffix names (YAML where it names none).

    Raises:
        InputFileError: the text cannot be changed in a faithful way.
    """
    if path.suffix == ".toml":
        return _each(_toml_with, path, text, edits)
    if path.suffix == ".json":
        return _each(_json_with, path, text, edits)
    return _yaml_with(path, text, edits)


def trial_text(document: Document, text: str, edits: Sequence[Edit]) -> str:
    """What the file would say with ``edits``, for asking only: YAML without its comments,
    and without ruamel.
    """
    if document.path.suffix in (".toml", ".json"):
        return with_edits(document.path, text, edits)
    import yaml

    return yaml.safe_dump(applied(document.table, edits), sort_keys=False)


def _each(change: Any, path: Path, text: str, edits: Sequence[Edit]) -> str:
    for edit in edits:
        text = change(path, text, edit)
    return text


def _yaml_with(path: Path, text: str, edits: Sequence[Edit]) -> str:
    """YAML by ruamel's round trip, which makes no objects of a file's choosing."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = _LONGEST_LINE
    yaml.explicit_start = text.startswith("---")
    _indent_as(text, yaml)
    try:
        table = yaml.load(text)
        for edit in edits:
            inner = table
            for name in edit.place[:-1]:
                inner = inner.setdefault(name, {})
            if edit.value is not REMOVED:
                inner[edit.place[-1]] = edit.value
            elif edit.place[-1] in inner:
                del inner[edit.place[-1]]
        stream = io.StringIO()
        yaml.dump(table, stream)
    except (YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        problem = getattr(error, "problem", None) or str(error)
        raise InputFileError(path, f"cannot be changed with its comments kept: {show(problem)}") from None
    written = stream.getvalue()
    return written.replace("\n", "\r\n") if "\r\n" in text else written


def _indent_as(text: str, yaml: Any) -> None:
    """Lists and tables as deep as those of ``text``; ruamel's own depths where it has none."""
    tables, lists = _TABLE.search(text), _SEQUENCE.search(text)
    mapping = len(tables["inner"]) if tables else 2
    offset = len(lists["inner"]) - len(lists["outer"]) if lists else 0
    yaml.indent(mapping=mapping, sequence=offset + 2, offset=offset)


def _json_with(path: Path, text: str, edit: Edit) -> str:
    del path
    return _json_at(text, _BLANK.match(text).end(), edit.place, edit.value)  # type: ignore[union-attr]


def _json_at(text: str, start: int, place: tuple[str, ...], value: Any) -> str:
    """``text`` with a key below the object that begins at ``start``;
    the last of several of one name counts.
    """
    members, end = _members(text, start)
    names = [name for name, *_ in members]
    if place[0] not in names:
        return (
            text
            if value is REMOVED
            else _with_member(text, start, (members, end), (place[0], _nested(place[1:], value)))
        )
    index = len(names) - 1 - names[::-1].index(place[0])
    _, key_at, value_at, value_end = members[index]
    if len(place) > 1 and text[value_at] == "{":
        return _json_at(text, value_at, place[1:], value)
    if value is not REMOVED:
        return text[:value_at] + json.dumps(_nested(place[1:], value)) + text[value_end:]
    if index > 0:
        return text[: members[index - 1][3]] + text[value_end:]
    return text[:key_at] + text[members[1][1] if len(members) > 1 else value_end :]


def _members(text: str, start: int) -> tuple[list[tuple[str, int, int, int]], int]:
    """Name, place of the name, of the value and of its end for each member of an object;
    then the object's last character.
    """
    decode = json.JSONDecoder().raw_decode
    members = []
    at = _after_blank(text, start + 1)
    while text[at] != "}":
        name, end = decode(text, at)
        value_at = _after_blank(text, _after_blank(text, end) + 1)
        _, value_end = decode(text, value_at)
        members.append((name, at, value_at, value_end))
        at = _after_blank(text, value_end)
        at = _after_blank(text, at + 1) if text[at] == "," else at
    return members, at


def _with_member(
    text: str, start: int, found: tuple[list[tuple[str, int, int, int]], int], member: tuple[str, Any]
) -> str:
    members, end = found
    added = f"{json.dumps(member[0])}: {json.dumps(member[1])}"
    if not members:
        return text[: start + 1] + added + text[end:]
    between = text[start + 1 : members[0][1]]
    last = members[-1][3]
    return f"{text[:last]},{between or ' '}{added}{text[last:]}"


def _nested(place: tuple[str, ...], value: Any) -> Any:
    return {place[0]: _nested(place[1:], value)} if place else value


def _after_blank(text: str, at: int) -> int:
    return _BLANK.match(text, at).end()  # type: ignore[union-attr]


def _toml_with(path: Path, text: str, edit: Edit) -> str:
    """Our own TOML: keys at its top, each on one line."""
    (name,) = edit.place
    key = re.escape(name).replace("_", "[-_]")
    found = re.search(rf"(?m)^[ \t]*[\"']?{key}[\"']?[ \t]*=[ \t]*(?P<rest>[^\n]*)(?:\n|$)", text)
    if found is None:
        end = "" if text.endswith("\n") or not text else "\n"
        return (
            text
            if edit.value is REMOVED
            else f"{text}{end}{name} = {json.dumps(edit.value, ensure_ascii=False)}\n"
        )
    if edit.value is REMOVED:
        return text[: found.start()] + text[found.end() :]
    rest = found["rest"]
    ends = [at for at, char in enumerate(rest) if char == "#"]
    for at in (*ends, len(rest)):
        if _is_toml(f"value = {rest[:at]}"):
            kept = rest[len(rest[:at].rstrip()) :]
            return (
                text[: found.start("rest")]
                + json.dumps(edit.value, ensure_ascii=False)
                + kept
                + text[found.end("rest") :]
            )
    raise InputFileError(
        path, f"key '{name}' has a value of several lines: write it in one, then it can be changed"
    )


def _is_toml(text: str) -> bool:
    try:
        toml_table("", text)
    except InputFileError:
        return False
    return True
