"""The comparison with other estimators is what their own code says today."""

from __future__ import annotations

import pytest

from tests.accuracy.estimators import other_tools_part
from tests.accuracy.other_tools import stored_other_tools
from tests.accuracy.stored import stored_accuracy
from tests.extras import import_or_skip


@pytest.mark.figures
def test_the_stored_comparison_is_what_the_estimators_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's and accelerate's functions, run on the same rows, give the stored errors."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    import_or_skip("deepspeed")
    assert stored_accuracy()["other_tools"] == other_tools_part()


def test_each_estimator_is_asked_about_some_rows() -> None:
    """No comparison is over an empty set, and ours is on the same rows."""
    for tool in stored_other_tools():
        assert tool.n_rows >= 10
        assert tool.ours_mape > 0
