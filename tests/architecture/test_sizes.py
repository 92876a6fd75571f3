"""Small files, small functions, few arguments: what a newcomer can read in one sitting."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_FILE_LINES = 500
MAX_COLUMNS = 110
MAX_BODY_LINES = 40
MAX_ARGUMENTS = 6
MAX_STACK_LINES = 15

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _sources() -> list[Path]:
    return sorted(path for package in ("planner", "measure") for path in (ROOT / package).rglob("*.py"))


def _functions() -> Iterator[tuple[str, Function]]:
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Function):
                yield f"{path.relative_to(ROOT).as_posix()}:{node.name}", node


def _body_lines(function: Function) -> int:
    """Lines of the body without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1 if body else 0


def _argument_count(function: Function) -> int:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return len(named) - (1 if named and named[0].arg in ("self", "cls") else 0)


def test_files_are_short() -> None:
    """No file of the packages has more than 500 lines."""
    lines = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in _sources()
    }
    assert {name.partition("/")[0] for name in lines} == {"planner", "measure"}, "the sources were not found"
    assert {name: count for name, count in lines.items() if count > MAX_FILE_LINES} == {}


def test_stacks_are_short() -> None:
    """No stack has more than 15 lines: what a package or a tool does is a fact of its version."""
    paths = sorted((ROOT / "data" / "stacks").glob("*.toml"))
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert len(lines) > 10, "the stacks were not found"
    assert {name: count for name, count in lines.items() if count > MAX_STACK_LINES} == {}


def test_lines_are_short() -> None:
    """No line has more than 110 columns, remarks to checkers included, which ruff passes over."""
    assert [
        f"{path.relative_to(ROOT).as_posix()}:{number}"
        for path in _sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > MAX_COLUMNS
    ] == []


def test_functions_are_short() -> None:
    """No body has more than 40 lines."""
    lines = {name: _body_lines(function) for name, function in _functions()}
    assert {name: count for name, count in lines.items() if count > MAX_BODY_LINES} == {}


def test_functions_take_few_arguments() -> None:
    """No function takes more than six arguments; what needs more gets a type."""
    assert {
        name: _argument_count(function)
        for name, function in _functions()
        if _argument_count(function) > MAX_ARGUMENTS
    } == {}
