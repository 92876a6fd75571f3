"""Tables of names."""

from __future__ import annotations

from planner.words import words


def test_words_keep_their_order_and_lose_the_space_around_them() -> None:
    """Over several lines, as tables of keys are written."""
    assert words("\n    gpu gpus\n    stack\n    ") == ("gpu", "gpus", "stack")
    assert words("") == ()
