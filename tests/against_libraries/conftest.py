"""Makes the modules of this folder and of those below importable: tests are collected in importlib mode,
which adds no folder to the path.  What compares whole steps is left to ``make test-real``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# The trace beside real steps on the CPU, and the step program beside the trace of the libraries' own modules.
WHOLE_STEPS = ("tracing", "step_program")
sys.path[:0] = [str(HERE), *sorted({str(test.parent) for test in HERE.glob("*/test_*.py")})]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Each of them takes seconds, and there are hundreds."""
    whole = {HERE / name for name in WHOLE_STEPS}
    for item in items:
        if whole & set(item.path.parents):
            item.add_marker(pytest.mark.real)
