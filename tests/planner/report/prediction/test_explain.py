"""Docstrings of formulas, as ``--explain`` shows them."""

from __future__ import annotations

import pytest

from planner.report.prediction.explain import formula_text


def documented(n_bytes: int) -> int:
    """Bytes of something, stored in ``n_bytes``.

    Formula: the number itself, see :func:`other`.  Source: a book,
    second line.

    More about it.  Ignored: nothing.
    """
    return n_bytes


def test_explain_reads_the_docstring_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summary, formula and source come from the function that the term names; a name that does not exist says nothing."""
    import planner.units

    monkeypatch.setattr(planner.units, "documented", documented, raising=False)
    text = formula_text("planner.units:documented")
    assert (text.summary, text.rule, text.ignored, text.source) == (
        "Bytes of something, stored in n_bytes.",
        "the number itself, see other.",
        "nothing.",
        "a book, second line.",
    )
    assert formula_text("planner.memory.cache:idle_by_phase").rule.startswith("coefficient slack_fraction of")
    assert formula_text("planner.units:no_such_function").summary == ""
    assert formula_text("os:system").summary == ""
