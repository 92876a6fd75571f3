"""Makes the modules of this folder and of those below importable: tests are collected in importlib mode,
which adds no folder to the path.  The trace is compared with real steps.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *sorted({str(test.parent) for test in HERE.glob("*/test_*.py")})]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """What the trace of our own step is compared with are real steps on the CPU."""
    for item in items:
        if HERE / "tracing" in item.path.parents:
            item.add_marker(pytest.mark.real)
