"""What is refused in JSON, TOML and YAML alike: the bounds, and the error that says where a text is wrong."""

from __future__ import annotations

MAX_DEPTH = 64
MAX_DIGITS = 300
"""More than any number that a float can hold has."""
TOO_DEEP = "nested too deeply"


class MalformedError(ValueError):
    """A text that is not what its format asks for.  ``line`` and ``character`` (in the text)
    count from 1, where known.
    """

    def __init__(self, problem: str, line: int | None = None, character: int | None = None) -> None:
        self.problem, self.line, self.character = problem, line, character
        super().__init__(problem)
