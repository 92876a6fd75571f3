"""Rows for the data sets that a program asks for and that nobody has.

Their columns are those that the program asks for: it runs again with each one that was missing.
What a column holds is told by its name, as TRL and Datasets use it; all others hold a text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from measure.dry_run.libraries.files.words import N_WORDS
from planner.errors import NotModelledError

FILE = "invented-rows.jsonl"
# What most examples read, and what TRL reads without being told.
_FIRST = ("text",)
_MOST_COLUMNS, _MOST_ROWS = 24, 100_000
_LABELS = ("label", "labels", "class")
# How pandas, Datasets (4 and 5: arrow_dataset.py, formatting.py) and a plain row say that one is missing.
_COLUMN = re.compile(
    r"[Cc]olumns?(?: names?| to remove)? [\[({]*'?(\w+)'?[^.]*? (?:not in|not found in|doesn't exist)"
)
_ROWS = re.compile(r"(?:Index |Invalid key: |test_size=)(\d+) (?:out of range|is out of bounds|should be)")


@dataclass(frozen=True, slots=True)
class Lacking:
    """What a program asked of rows that do not have it: a column, or a number of rows; false for neither."""

    column: str = ""
    n_rows: int = 0

    def __bool__(self) -> bool:
        return bool(self.column or self.n_rows)

    def __str__(self) -> str:
        return f"a column {self.column}" if self.column else f"{self.n_rows:,} rows"


@dataclass(frozen=True, slots=True)
class InventedRows:
    """``n_rows`` rows, each text of which has ``n_words`` words."""

    n_words: int
    columns: tuple[str, ...] = _FIRST
    n_rows: int = 1000

    def with_(self, lacking: Lacking) -> InventedRows:
        """The same with what was missing.

        Raises:
            NotModelledError: no end is in sight.
        """
        if len(self.columns) == _MOST_COLUMNS or lacking.n_rows > _MOST_ROWS:
            named = f"columns {', '.join(self.columns)} and {lacking.column}"
            what = f"{lacking.n_rows:,} rows" if lacking.n_rows else named
            raise NotModelledError(f"the program asks for {what}, which is too much to invent: --data FILE")
        if lacking.n_rows:
            return replace(self, n_rows=lacking.n_rows)
        # Nobody asked for the first: some programs drop the columns that their rows really have, by name.
        asked = () if self.columns == _FIRST else self.columns
        return replace(self, columns=(*asked, lacking.column))

    def to_jsonl(self) -> str:
        """One row a line, no two alike."""
        return "".join(f"{json.dumps(self._row(number))}\n" for number in range(self.n_rows))

    def _row(self, number: int) -> dict[str, Any]:
        return {name: self._value(name, number) for name in self.columns}

    def _value(self, name: str, number: int) -> Any:
        if name in _LABELS:
            return number % 2
        words = [f"w{(number * 7 + each) % N_WORDS}" for each in range(self.n_words)]
        halves = " ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])
        if name == "messages":
            return [
                _turn("role", "user", "content", halves[0]),
                _turn("role", "assistant", "content", halves[1]),
            ]
        if name == "conversations":
            return [_turn("from", "human", "value", halves[0]), _turn("from", "gpt", "value", halves[1])]
        return " ".join(words)

    def __str__(self) -> str:
        """What they are, for the list of what was assumed."""
        kinds = " (labels of 2 classes)" if set(self.columns) & set(_LABELS) else ""
        named = f"{self.n_rows:,} rows of {', '.join(self.columns)}{kinds}"
        return f"{named}, each text of {self.n_words:,} words"


def _turn(who: str, speaker: str, what: str, text: str) -> dict[str, str]:
    return {who: speaker, what: text}


def lacking_behind(error: BaseException | None, columns: tuple[str, ...]) -> Lacking:
    """What of its rows a program missed that ended with ``error``."""
    while error is not None:
        text = str(error.args[0]) if error.args else ""
        if (found := _COLUMN.search(text)) is not None and found[1] not in columns:
            return Lacking(column=found[1])
        if (found := _ROWS.search(text)) is not None:
            return Lacking(n_rows=2 * int(found[1]))
        if isinstance(error, KeyError) and text.isidentifier() and text not in columns:
            return Lacking(column=text)
        error = error.__cause__ or error.__context__
    return Lacking()
