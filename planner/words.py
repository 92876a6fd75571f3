"""Tables of names, written as text."""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    """The words of ``text``, in their order: a table of keys or names without quotes and commas."""
    return tuple(text.split())
