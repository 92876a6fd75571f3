"""What a trace says for people."""

from __future__ import annotations

from dataclasses import replace

import pytest

from measure.trace.report import to_text
from planner.allocator.documents.summary import summarize
from tests.planner.allocator.documents.made import EVENTS


@pytest.mark.parametrize("around", ["model.", "base_model.model.model.", "module.base_model.model.model."])
def test_a_module_is_named_without_what_wraps_the_model(around: str) -> None:
    """The model's own class, PEFT's and an engine's."""
    events = [replace(each, module=each.module and around + each.module) for each in EVENTS]
    text = to_text(summarize(events))
    assert "op3 (layers.3)" in text
    assert around not in text
