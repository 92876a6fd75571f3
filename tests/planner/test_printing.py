"""What may reach a terminal."""

from __future__ import annotations

from planner.printing import printable


def test_control_characters_do_not_reach_the_terminal() -> None:
    """An escape sequence in a name is replaced, plain text stays as it is."""
    assert printable("a\x1b[31mb\nc\udc80") == "a?[31mb?c?"
    assert printable("Größe") == "Größe"
