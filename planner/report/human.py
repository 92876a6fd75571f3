"""Sections -> a report for people, drawn with rich: colours on a terminal, plain text everywhere else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.bar import FREE, letter_line, scale_line, segment_cells
from planner.report.layout import Block, Commands, Grid, Note, Row, Section, StackedBar, Tone
from planner.report.numbers import printable

MAX_WIDTH = 100
_WIDE = 92

_STYLES: dict[Tone, str] = {
    "plain": "",
    "strong": "bold",
    "good": "bold green",
    "bad": "bold red",
    "warn": "yellow",
    "dim": "dim",
}
_PALETTE = ("blue", "cyan", "green", "magenta", "yellow", "red", "bright_blue", "bright_cyan", "bright_green", "bright_magenta")
_FULL_CELL = "\u2588"


def make_console(stream: TextIO) -> Console:
    """A console on ``stream`` at most 100 columns wide; without a single escape code unless it is a colour terminal.

    ``NO_COLOR`` (any value) turns colours off.  Text is never interpreted as markup.
    """
    plain = bool(os.environ.get("NO_COLOR")) or not stream.isatty()
    console = Console(file=stream, highlight=False, markup=False, emoji=False, color_system=None if plain else "auto")
    width = console.width if stream.isatty() or "COLUMNS" in os.environ else MAX_WIDTH
    console.width = min(width, MAX_WIDTH)
    return console


def to_text(sections: Sequence[Section], console: Console) -> str:
    """The report as text for the stream of ``console``, without blanks at the ends of lines."""
    with console.capture() as capture:
        _print_sections(sections, console)
    text = capture.get()
    return text if console.color_system else "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def _print_sections(sections: Sequence[Section], console: Console) -> None:
    for index, section in enumerate(sections):
        if index:
            console.print()
        if section.title:
            console.print(Text(section.title, style="bold underline" if console.color_system else ""))
            if not console.color_system:
                console.print("-" * min(len(section.title), console.width))
        for block in section.blocks:
            _print_block(block, console)


def _print_block(block: Block, console: Console) -> None:
    if isinstance(block, Note):
        console.print(Text(printable(block.text), style=_STYLES[block.tone]))
    elif isinstance(block, StackedBar):
        console.print(_bar(block, console))
    elif isinstance(block, Commands):
        console.print(Text("\n".join(map(printable, block.lines))), soft_wrap=True)
    else:
        console.print(_table(block, wide=console.width >= _WIDE))


def _bar(bar: StackedBar, console: Console) -> Text:
    width = console.width
    below = f"\n{scale_line(bar, width)}"[: width + 1]
    if console.color_system is None or console.options.ascii_only:
        return Text(letter_line(bar, width) + below)
    line = Text()
    for index, count in enumerate(segment_cells(bar, width)):
        line.append(_FULL_CELL * count, style=_colour(index))
    line.append(FREE * (width - len(line)), style="dim")
    return line.append(below)


def _table(grid: Grid, *, wide: bool) -> Table:
    titled = any(column.title for column in grid.columns)
    shown = [index for index, column in enumerate(grid.columns) if wide or not column.wide_only]
    table = Table(box=None, show_header=titled, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for column in (grid.columns[index] for index in shown):
        table.add_column(column.title, justify=column.align, no_wrap=column.whole or column.align == "right", overflow="fold")
    for row in grid.rows:
        cells = _cells(row)
        table.add_row(*(cells[index] for index in shown), style=_STYLES[row.tone])
    return table


def _cells(row: Row) -> list[Text]:
    cells = [Text(printable(cell)) for cell in row.cells]
    if row.colour is not None:
        cells[0].stylize(_colour(row.colour))
    return cells


def _colour(index: int) -> str:
    return _PALETTE[index % len(_PALETTE)]
