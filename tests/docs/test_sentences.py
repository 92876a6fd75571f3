"""Docstrings and pages can be read once: no sentence is longer than a person keeps in mind."""

from __future__ import annotations

import pytest
from sentences import ROOT, longest_first, sentences

MAX_WORDS = 45
MAX_FOLDER_PAGE_BYTES = 6 * 1024
FOLDER_PAGES = tuple(
    f"{name}/README.md" for name in ("planner", "measure", "tests", "data", "data/published", "data/stacks")
)


def test_no_sentence_is_too_long() -> None:
    """The longest one has 45 words; ``python tests/docs/sentences.py`` prints the ten longest."""
    found = longest_first()
    assert (
        len({each.place.partition("/")[0] for each in found} & {"planner", "measure", "docs", "data"}) == 4
    ), "texts were not found"
    assert [
        f"{each.words} words, {each.place}: {each.text}" for each in found if each.words > MAX_WORDS
    ] == []


@pytest.mark.parametrize("name", FOLDER_PAGES)
def test_the_page_of_a_folder_is_short(name: str) -> None:
    """A map of a folder fits on two screens; what belongs to one thing has a page beside it."""
    assert len((ROOT / name).read_bytes()) <= MAX_FOLDER_PAGE_BYTES


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("One two three. Four five.", [3, 2]),
        ("One of torch 2.13 and `a b c`, see it. ``code`` begins the next.", [8, 4]),
        ("Several lines\nmake one sentence.\n\nA paragraph ends it", [5, 4]),
        ("- an item\n- another one\n\n| a cell | one more cell |", [2, 2, 2, 3]),
        ("What is summed.\n\nFormula: a + b\nSource: package 1.0, file", [3, 3, 4]),
        ("Text.\n\n```sh\nplan --model 7b\n```\n\n    plan --seq 1\n\nMore text.", [1, 2]),
        ("<!-- generated: x -->\n\nnot ours at all\n\n<!-- end -->\nOurs.", [1]),
    ],
)
def test_sentences_are_told_apart(text: str, words: list[int]) -> None:
    """By full stops, paragraphs, items, cells and labels; code and generated parts are no prose."""
    assert [each.words for each in sentences(text, "x.md")] == words
