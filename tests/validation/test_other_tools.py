"""The comparison with other estimators is what their own code says today."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from planner.calibration.other_tools import stored_other_tools
from tests.extras import import_or_skip

_SPEC = importlib.util.spec_from_file_location("other_tools", Path(__file__).with_name("other_tools.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
other_tools = importlib.util.module_from_spec(_SPEC)
sys.modules["other_tools"] = other_tools
_SPEC.loader.exec_module(other_tools)


def test_the_stored_comparison_is_what_the_estimators_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's and accelerate's functions, run on the same rows, give the stored errors."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    import_or_skip("deepspeed")
    assert other_tools.STORED.read_text(encoding="utf-8") == other_tools.document()
    assert other_tools.STORED_POINTS.read_text(encoding="utf-8") == other_tools.points()


def test_each_estimator_is_asked_about_some_rows() -> None:
    """No comparison is over an empty set, and ours is on the same rows."""
    for tool in stored_other_tools():
        assert tool.n_rows >= 10
        assert tool.ours_mape > 0
