"""Powers of 2 and 10 have one home, and quantities say their unit in their name."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_POWER = re.compile(
    r"\b1024\s*\*\*|\b2\s*\*\*\s*[1-4]0\b|\b10\s*\*\*\s*\d|(?<![\w.])1e\+?0?(?:3|6|9|12)\b"
    r"|\b1024\s*\*\s*1024\b|<<\s*[1-4]0\b|\b(?:1048576|1073741824)\b"
)


def code_only(text: str) -> str:
    """``text`` with comments and strings left out, line by line."""
    lines = [""] * (text.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NAME, tokenize.NUMBER, tokenize.OP):
            lines[token.start[0]] += f"{token.string} "
    return "\n".join(lines)


def bare_powers(text: str) -> list[int]:
    """Numbers of the lines of code that spell out a power of 2 or 10."""
    return [number for number, line in enumerate(code_only(text).split("\n")) if _POWER.search(line)]


def test_powers_live_in_units_alone() -> None:
    """No module but units.py spells out a power of 2 or 10 that is a unit."""
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in sorted((ROOT / "planner").rglob("*.py"))
        if path.name != "units.py" and (lines := bare_powers(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line", ["x / 1024**3", "x * 1e9", "2 ** 30", "n / 1e+06", "1 << 20", "10**9 * n", "1024 * 1024"]
)
def test_a_bare_power_is_noticed(line: str) -> None:
    """Each way of spelling a unit by hand is found in code."""
    assert bare_powers(f"a = 1\ny = {line}\n") == [2]


@pytest.mark.parametrize(
    "line", ["x = 1024", "x = a1e9", "# 1e9 bytes", "'2**30'", "x = 1.1e9", "1 << bits", "1e-6"]
)
def test_other_numbers_are_left_alone(line: str) -> None:
    """Comments, strings, names and numbers that are no unit pass."""
    assert bare_powers(f"{line}\n") == []


def test_the_word_flops_is_in_no_name() -> None:
    """Names say FLOP (a count) or FLOP per second (a rate); "flops" could be either."""
    found = []
    for path in sorted((ROOT / "planner").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            name = (
                getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "name", None) or ""
            )
            if isinstance(name, str) and "flops" in name.lower():
                found.append(f"{path.relative_to(ROOT).as_posix()}: {name}")
    assert found == []
