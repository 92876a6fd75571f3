"""The report as markdown."""

from __future__ import annotations

from dataclasses import replace

from planner.report.prediction.sections import build_sections
from planner.report.prediction.subject import Subject
from planner.report.render.markdown import to_markdown
from tests.planner.report.prediction.made import (
    prediction,
    scenario,
)


def test_markdown_has_a_table_for_every_grid_and_escapes_cells() -> None:
    """Markdown says the same as the human report, as tables, and a pipe in a name does not break a row."""
    made = replace(prediction(), reason="a|b <script> *c*")
    named = replace(made.memory.terms[0], label="base weights_in|nf4")
    made = replace(made, memory=replace(made.memory, terms=(named, *made.memory.terms[1:])))
    text = to_markdown(build_sections(Subject(scenario(), made)))
    assert text.startswith("**FITS: needs 5.03 of 23.03 GiB per GPU")
    assert r"A\|b \<script\> \*c\*" in text
    assert "## Terms at the peak (backward, 1st micro-batch)" in text
    assert "| **= driver** | **5.03** |" in text
    rows = [line for line in text.splitlines() if line.startswith("| a |")]
    assert rows == [r"| a | base weights\_in\|nf4 | 3.26 | 64.7 % | replicated |"]
