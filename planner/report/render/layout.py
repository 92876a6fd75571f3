"""What a report is made of, without saying how it looks: sections of notes, grids and bars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "strong", "good", "bad", "warn", "dim"]
Align = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Note:
    """One paragraph; of one that may be ``cut``, a terminal shows the first line alone."""

    text: str
    tone: Tone = "plain"
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a grid; an empty title everywhere means a grid without a header row.

    A ``wide_only`` column is left out on a narrow terminal; one that is ``whole`` holds names to copy,
    so others give way first.
    """

    title: str
    align: Align = "left"
    wide_only: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a grid.  ``colour`` is the index of the bar segment that the row explains."""

    cells: tuple[str, ...]
    tone: Tone = "plain"
    colour: int | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows under columns."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of a stacked bar, known by a letter that a table of terms repeats."""

    key: str
    n_bytes: float


@dataclass(frozen=True, slots=True)
class StackedBar:
    """Pieces of a total against a limit in bytes (``None``: unknown)."""

    segments: tuple[Segment, ...]
    limit_bytes: float | None

    @property
    def total_bytes(self) -> float:
        """Sum of the segments."""
        return sum(segment.n_bytes for segment in self.segments)

    @property
    def scale_bytes(self) -> float:
        """What the full width stands for: the limit, or the total where it is larger."""
        return max(self.total_bytes, self.limit_bytes or 0.0)


@dataclass(frozen=True, slots=True)
class Commands:
    """Lines to copy into a shell as they are; none is wrapped."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FlagChoice:
    """Flags that may be given, what they mean, and one fact for each column of the list.
    A terminal may leave ``text`` out.
    """

    flags: str
    text: str
    facts: tuple[str, ...]
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Choices:
    """A list of flags to choose from.  Flags are to be copied, so they are never cut or broken.

    ``texts``: what flags mean is shown even where it needs a line of its own.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[FlagChoice, ...]
    texts: bool = False


@dataclass(frozen=True, slots=True)
class ChartPart:
    """One part of a chart's axis: names for it, the longest first, and its points in order,
    each a lower and an upper amount.
    """

    labels: tuple[str, ...]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Two amounts in bytes over parts of an axis, one filled below the other, and the limit of the upper one.

    ``crossed``: part and place in it, from 0 to 1, at which the limit is too low.
    """

    parts: tuple[ChartPart, ...]
    limit_bytes: float | None = None
    crossed: tuple[int, float] | None = None


Block = Note | Grid | StackedBar | Commands | Choices | Chart


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title; the verdict has none."""

    title: str
    blocks: tuple[Block, ...]
