"""Files with a structure, and what can be done to them: trees of tables and lists, written as JSON,
YAML or TOML.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

Draw = st.DrawFn


class Raw(str):
    """Text that is written as it stands, right or wrong in the format."""

    __slots__ = ()


class Table(list[list[Any]]):
    """A table as pairs of key and value, in order, so that a key can be there twice."""


Node = Any

DEEP, DEEPER = 10_000, 200_000
HOSTILE: tuple[Node, ...] = (
    None, True, False, 0, 1, -1, 2, -0.0, 0.5, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30, 1e308,
    5e-324, 1e-9,
    *map(Raw, ("1" + "0" * 5000, "-" + "9" * 400, "1e400", "-1e400", "1e-400", "NaN", "nan", ".nan", "-.inf",
    "Infinity")),
    *map(Raw, ("{{ x }}", "${x}", "? [a]", "&a [1]", "*a", "&a [*a]", "<<: *a", "!!python/name:os.system",
    "!!binary aGk=")),
    *map(Raw, ("2026-99-99", "2026-01-01", "2026-01-01T00:00:00Z", "1:30:00", "0x1F", "0o17", "1_000", "~",
    "|\n  a", "- - a")),
    *map(Raw, ('"', "'", "[", "{", "]", "%", "@", "`", "\t", "#", ":", "---", "...", "'''", '"""')),
    "{{ x }}", "${x}", "$HOME", "", " ", "\n", "auto", "none", "null", "true", "false", "yes", "no", "on",
    "-1", "0", "1e400",
    "NaN", "0x10", "1_000", "4k", "1m", "²", "½", "٣", "9" * 5000, "24GiB", "1e999GiB", "-5GiB", "7b", "4090",
    "4090:2", "a:0",
    "4090:" + "9" * 400, "a/b", "a/b/c", "..", ".", "/", "~", "~nosuchuser", "~nosuchuser/a.json",
    "/dev/zero", "/dev/stdin",
    "/proc/self/environ",
    "../../../etc/passwd", "file:///etc/passwd", "a.json", "a.yaml", "C:\\a", "a\x00b", "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b31m", "\x7f", "\r", "a\rb", "\u202eabc", "\u2066", "\u2028", "\ufeff", "\u200b", "e\u0301" * 50,
    "漢字", "😀", "\ud800",
    "\ufffe", "x" * 5000, "[bold]x[/bold]", "[/]", "[link=file:///]", "%s%n", "{0}", "--help", "-", "=", ";",
    ",", "a;" * 3000,
    "a=b", "a==1", "torch==9", "deepspeed==0.16.4", "all-linear", "full", "lora", "qlora", "nf4", "zero3",
    "fsdp", "cpu",
    "flash2",
    [], [[]], [None], [1, "a"], ["a"] * 2000, [{}], Table(), Table([["a", 1]]), Table([["", None]]),
    Table([["a", Table([["b",
    []]])]]),
)  # fmt: skip
KEYS: tuple[Any, ...] = (
    "", " ", "a", "A", "0", "schema", "name", "__class__", "__proto__", "<<", "a.b", "a b", "a=b", "é",
    "\u202ea", "\x1b[31m",
    "a\nb",
    "\x00", "x" * 5000, "[bold]", "[/]", "{{ x }}", "${x}", 1, 1.5, None, True,
    *map(Raw, ("? [a]", "{{ x }}", "[a]", "&a b",
    "*a", "<<")),
)  # fmt: skip
# Most are values of the format, so that a reader sees them: what no parser takes ends there.
hostile_values = st.one_of(
    *[st.sampled_from([value for value in HOSTILE if not isinstance(value, Raw)])] * 4,
    st.sampled_from([value for value in HOSTILE if isinstance(value, Raw)]),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([(bracket, depth) for bracket in "[{" for depth in (100, 1_000, DEEP)]).map(
        lambda it: nested(*it)
    ),
)


def nested(bracket: str, depth: int) -> Raw:
    """Lists or tables in each other."""
    return Raw("[" * depth + "]" * depth if bracket == "[" else '{"a":' * depth + "1" + "}" * depth)


def tree_of(value: Any) -> Node:
    """A value of JSON, YAML or TOML with its tables as pairs."""
    if isinstance(value, dict):
        return Table([[key, tree_of(each)] for key, each in value.items()])
    return [tree_of(each) for each in value] if isinstance(value, list) else value


# ---- mutations of a tree ----


def _containers(node: Node) -> list[Any]:
    """Every table and list that has something in it, from the top."""
    found = [node] if isinstance(node, list) and node else []
    inner = [pair[1] for pair in node] if isinstance(node, Table) else node if isinstance(node, list) else ()
    return found + [each for value in inner for each in _containers(value)]


@st.composite
def mutated(draw: Draw, seed: Node, keys: Sequence[str] = ()) -> Node:
    """``seed`` after a few mutations, mostly one or two;
    ``keys`` are names that the reader of such a file knows.
    """
    tree = copy.deepcopy(seed)
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 2, 4)))):
        places = _containers(tree)
        if not places:
            break
        draw(st.sampled_from(_MUTATIONS))(
            draw, draw(st.sampled_from(places)), places, st.sampled_from((*keys, *KEYS))
        )
    return tree


def _index(draw: Draw, place: list[Any]) -> int:
    return draw(st.integers(0, len(place) - 1)) if place else 0


def _put(
    draw: Draw, place: list[Any], keys: st.SearchStrategy[Any], value: Node, at: int | None = None
) -> None:
    """``value`` under a key, or in the list, at a place of its own or over what is at ``at``."""
    if at is not None:
        if isinstance(place, Table):
            place[at][1] = value
        else:
            place[at] = value
    else:
        place.insert(
            draw(st.integers(0, len(place))), [draw(keys), value] if isinstance(place, Table) else value
        )


def _replace(draw: Draw, place: list[Any], places: list[Any], keys: st.SearchStrategy[Any]) -> None:
    _put(draw, place, keys, copy.deepcopy(draw(hostile_values)), _index(draw, place))


def _tweak(draw: Draw, place: list[Any], places: list[Any], keys: st.SearchStrategy[Any]) -> None:
    """A value near the one that is there, which a reader may well take."""
    at = _index(draw, place)
    value = place[at][1] if isinstance(place, Table) else place[at]
    if isinstance(value, bool):
        _put(draw, place, keys, not value, at)
    elif isinstance(value, int | float):
        near = (
            value + 1,
            value - 1,
            value * 2,
            value / 2,
            value // 3,
            0,
            1,
            -value,
            value * 1000,
            float(value),
            str(value),
        )
        _put(draw, place, keys, draw(st.sampled_from(near)), at)
    elif isinstance(value, str):
        _put(
            draw,
            place,
            keys,
            draw(
                st.sampled_from(
                    (value.upper(), value + " ", value[:-1], f"{value}{value}", [value], "", "auto")
                )
            ),
            at,
        )


def _add(draw: Draw, place: list[Any], places: list[Any], keys: st.SearchStrategy[Any]) -> None:
    _put(draw, place, keys, copy.deepcopy(draw(hostile_values)))


def _drop(draw: Draw, place: list[Any], places: list[Any], keys: st.SearchStrategy[Any]) -> None:
    del place[_index(draw, place)]


def _double(draw: Draw, place: list[Any], places: list[Any], keys: st.SearchStrategy[Any]) -> None:
    place.append(copy.deepcopy(place[_index(draw, place)]))


def _rename(draw: Draw, place: list[Any], places: list[Any], keys: st.SearchStrategy[Any]) -> None:
    if isinstance(place, Table):
        place[_index(draw, place)][0] = draw(keys)


def _move(draw: Draw, place: list[Any], places: list[Any], keys: st.SearchStrategy[Any]) -> None:
    taken = place.pop(_index(draw, place))
    target = draw(st.sampled_from(places))
    # Not into itself: a tree with a circle has no text.
    if not any(each is target for each in _containers([taken])):
        value = taken[1] if isinstance(place, Table) else taken
        target.append(
            [taken[0] if isinstance(place, Table) else draw(keys), value]
            if isinstance(target, Table)
            else value
        )


def _swap(draw: Draw, place: list[Any], places: list[Any], keys: st.SearchStrategy[Any]) -> None:
    one, other = _index(draw, place), _index(draw, place)
    if isinstance(place, Table):
        place[one][1], place[other][1] = place[other][1], place[one][1]
    else:
        place[one], place[other] = place[other], place[one]


def _wrap(draw: Draw, place: list[Any], places: list[Any], keys: st.SearchStrategy[Any]) -> None:
    at = _index(draw, place)
    value = place[at][1] if isinstance(place, Table) else place[at]
    _put(
        draw,
        place,
        keys,
        draw(st.sampled_from([[value], Table([["a", value]]), str(value)[:100], [[value]]])),
        at,
    )


_MUTATIONS: tuple[Callable[..., None], ...] = (
    *[_tweak] * 5, _replace, _replace, _add, _add, _drop, _drop, _double, _rename, _move, _swap, _wrap,
)  # fmt: skip


# ---- trees as text ----


def to_json(node: Node) -> str:
    """JSON, but for what is written as it stands."""
    if isinstance(node, Raw):
        return str(node)
    if isinstance(node, Table):
        return "{" + ", ".join(f"{_json_key(key)}: {to_json(value)}" for key, value in node) + "}"
    return (
        "[" + ", ".join(map(to_json, node)) + "]" if isinstance(node, list) else json.dumps(node, default=str)
    )


def _json_key(key: Any) -> str:
    return str(key) if isinstance(key, Raw) else json.dumps(key if isinstance(key, str) else str(key))


def to_yaml(node: Node) -> str:
    """Blocks for the tables at the top and just below it, JSON for what is deeper."""
    return _yaml_block(node, 0) if isinstance(node, Table) and node else to_json(node) + "\n"


def _yaml_block(table: Table, depth: int) -> str:
    lines = []
    for key, value in table:
        name = (
            json.dumps(key)
            if not isinstance(key, Raw) and (not isinstance(key, str) or not key.isidentifier())
            else key
        )
        if isinstance(value, Table) and value and depth < 2:
            lines.append(f"{' ' * 2 * depth}{name}:\n{_yaml_block(value, depth + 1)}")
        else:
            lines.append(f"{' ' * 2 * depth}{name}: {to_json(value)}\n")
    return "".join(lines)


def to_toml(node: Node) -> str:
    """Keys of the top first, then its tables and lists of tables under their heads."""
    if not isinstance(node, Table):
        return _toml_value(node) + "\n"
    plain = [pair for pair in node if not _has_head(pair[1])]
    text = "".join(f"{_toml_key(key)} = {_toml_value(value)}\n" for key, value in plain)
    for key, value in node:
        if not _has_head(value):
            continue
        head = f"[{_toml_key(key)}]" if isinstance(value, Table) else f"[[{_toml_key(key)}]]"
        for each in [value] if isinstance(value, Table) else value:
            text += f"\n{head}\n" + "".join(
                f"{_toml_key(name)} = {_toml_value(inner)}\n" for name, inner in each
            )
    return text


def _has_head(value: Node) -> bool:
    return isinstance(value, Table) or (
        isinstance(value, list) and bool(value) and all(isinstance(x, Table) for x in value)
    )


def _toml_key(key: Any) -> str:
    plain = isinstance(key, str) and key.isidentifier() and key.isascii()
    return str(key) if isinstance(key, Raw) or plain else json.dumps(str(key))


def _toml_value(node: Node) -> str:
    if isinstance(node, Raw):
        return str(node)
    if isinstance(node, Table):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml_value(value)}" for key, value in node) + "}"
    if isinstance(node, list):
        return "[" + ", ".join(map(_toml_value, node)) + "]"
    return (
        '"none"' if node is None else repr(node) if isinstance(node, float) else json.dumps(node, default=str)
    )


# ---- mutations of the bytes ----


def encoded(text: str) -> bytes:
    """UTF-8, with lone surrogates as they come."""
    return text.encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: Draw, content: bytes) -> bytes:
    """``content`` as it is (mostly), or in another encoding, cut,
    or with bytes between that do not belong there.
    """
    return draw(st.sampled_from(_DAMAGES))(draw, content)


def _whole(draw: Draw, content: bytes) -> bytes:
    return content


def _cut(draw: Draw, content: bytes) -> bytes:
    return content[: draw(st.integers(0, len(content)))]


def _insert(draw: Draw, content: bytes) -> bytes:
    at = draw(st.integers(0, len(content)))
    junk = draw(st.sampled_from(_JUNK) | st.binary(min_size=1, max_size=4))
    return content[:at] + junk + content[at:]


def _flip(draw: Draw, content: bytes) -> bytes:
    if not content:
        return content
    at = draw(st.integers(0, len(content) - 1))
    return content[:at] + bytes([content[at] ^ draw(st.integers(1, 255))]) + content[at + 1 :]


def _otherwise(draw: Draw, content: bytes) -> bytes:
    return draw(st.sampled_from(_WHOLE))(content)


def _in_encoding(name: str) -> Callable[[bytes], bytes]:
    return lambda content: content.decode("utf-8", "replace").encode(name, "replace")


_JUNK = (
    b"\0",
    b"\r",
    b"\x1b[31m",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\n\n",
    b"---\n",
    b"\t",
    b"\x85",
    b"\xe2\x80\xa8",
)
_WHOLE: tuple[Callable[[bytes], bytes], ...] = (
    lambda content: b"\xef\xbb\xbf" + content,
    lambda content: content.replace(b"\n", b"\r\n"),
    lambda content: content.replace(b"\n", b"\r"),
    lambda content: content + content,
    lambda content: content + b"\n---\n" + content,
    lambda content: b"[" * DEEP + content,
    lambda content: b'{"a":' * DEEPER + content,
    lambda content: content + b" " * 300_000,
    lambda content: b"#" * 300_000 + b"\n" + content,
    lambda content: b"\n" * 100_000 + content,
    lambda content: b"",
    lambda content: b"\0" * 1000,
    *map(_in_encoding, ("utf-16", "utf-32", "latin-1", "cp037", "utf-7")),
)  # fmt: skip
_DAMAGES = (*[_whole] * 16, _cut, _insert, _flip, _otherwise)
