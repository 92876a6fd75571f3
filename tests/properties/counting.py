"""A pytest plugin of ``make explore``: counts the inputs of property tests, and stops when the time is over.

``EXPLORE_FOLDER`` is where each worker leaves what it counted,
``EXPLORE_UNTIL`` the end in seconds since 1970.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_counted = {"inputs": 0}
_wrapped: set[int] = set()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Count each call that Hypothesis makes of the function inside of a property test.

    Plugins replace ``hypothesis.inner_test`` to run it in their own way (Hypothesis:
    detecting and wrapping tests).
    """
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    if handle is not None and id(handle) not in _wrapped:
        _wrapped.add(id(handle))
        handle.inner_test = _counting(handle.inner_test)


def _counting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        if _is_over():
            return None
        _counted["inputs"] += 1
        return function(*arguments, **named)

    return counted


def pytest_runtest_setup(item: pytest.Item) -> None:
    """No test begins after the end, and what has begun tries nothing more."""
    if _is_over():
        pytest.skip("the time is over")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Each worker tells of its own tests; without workers the one process does."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with (_folder() / "failures").open("a", encoding="utf-8") as stream:
            stream.write(f"{report.nodeid}\n")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave the count; the process that only hands out work has counted nothing."""
    if _counted["inputs"]:
        (_folder() / f"inputs-{os.getpid()}").write_text(str(_counted["inputs"]), encoding="ascii")


def _is_over() -> bool:
    return time.time() > float(os.environ["EXPLORE_UNTIL"])


def _folder() -> Path:
    return Path(os.environ["EXPLORE_FOLDER"])
