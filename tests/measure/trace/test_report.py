"""What a trace says for people."""

from __future__ import annotations

from dataclasses import replace

import pytest

from measure.trace.report import to_text, wrapped
from planner.allocator.documents.summary import summarize
from tests.planner.allocator.documents.made import EVENTS


@pytest.mark.parametrize("around", ["model.", "base_model.model.model.", "module.base_model.model.model."])
def test_a_module_is_named_without_what_wraps_the_model(around: str) -> None:
    """The model's own class, PEFT's and an engine's."""
    events = [replace(each, module=each.module and around + each.module) for each in EVENTS]
    text = to_text(summarize(events))
    assert "op3 (layers.3)" in text
    assert around not in text


def test_phases_have_the_words_of_the_plan_and_lines_the_terminals_width() -> None:
    """What does not fit goes on below, indented; no word is broken."""
    text = to_text(summarize([replace(each, module="layers.3.self_attn.q_proj") for each in EVENTS]))
    rows = wrapped(text, 80).splitlines()
    assert any(row.startswith("forward, 1st micro-batch ") for row in rows)
    assert not any(row.startswith("forward ") for row in rows)
    assert max(map(len, rows)) <= 80
    assert wrapped(text, 1000) == text
    assert wrapped("  a word and more\n", 10) == "  a word\n    and\n    more\n"
