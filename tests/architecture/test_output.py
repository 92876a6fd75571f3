"""``measure`` writes in one place, where control characters of text from outside are taken out."""

from __future__ import annotations

import ast
from pathlib import Path

MEASURE = Path(__file__).parents[2] / "measure"
WRITER = MEASURE / "output.py"


def test_measure_writes_in_one_place() -> None:
    """Nobody else prints, or writes to standard output or standard error."""
    found = []
    for file in sorted(MEASURE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and file != WRITER:
                called = ast.unparse(node.func)
                if called == "print" or called.startswith(("sys.stdout.write", "sys.stderr.write")):
                    found.append(f"{file.name}:{node.lineno}")
    assert found == []
