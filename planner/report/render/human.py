"""Sections -> a report for people, drawn with rich: colours on a terminal, plain text everywhere else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, detect_legacy_windows
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from planner.printing import MOST_WIDTH, printable, width_of
from planner.report.render.bar import FREE, scale_line, segment_cells
from planner.report.render.chart import ALLOCATED, CACHED, CROSSED, HEIGHT, LIMIT, chart_lines
from planner.report.render.layout import (
    Block,
    Chart,
    Choices,
    Commands,
    FlagChoice,
    Grid,
    Note,
    Row,
    Section,
    StackedBar,
    Tone,
)
from planner.report.render.wrapping import first_line, wrap

_STYLES: dict[Tone, str] = {
    "plain": "",
    "strong": "bold",
    "good": "bold green",
    "bad": "bold red",
    "warn": "yellow",
    "dim": "dim",
}
_PALETTE = (
    *("bright_blue", "bright_yellow", "bright_green", "bright_magenta", "bright_cyan", "white", "bright_red"),
    *("cyan", "yellow", "green", "magenta", "red"),
)
_GUTTER = 2


def make_console(stream: TextIO) -> Console:
    """A console on ``stream`` as wide as its terminal;
    without a single escape code unless it is a colour terminal.

    ``COLUMNS`` says another width, ``NO_COLOR`` (any value) turns colours off.  Text is never interpreted as
    markup.  The console of Windows before 10 knows no escape codes, and the report is drawn before it is
    written.
    """
    plain = bool(os.environ.get("NO_COLOR")) or not stream.isatty() or detect_legacy_windows()
    width = width_of(stream)
    return Console(
        file=stream,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if plain else "auto",
        width=width,
        height=24,
    )


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
    width = console.width
    if isinstance(block, Note):
        text = printable(block.text)
        lines = [first_line(text, width)] if block.cut else wrap(text, width)
        console.print(Text("\n".join(lines), style=_STYLES[block.tone]), soft_wrap=True)
    elif isinstance(block, StackedBar):
        console.print(_bar(block, console), soft_wrap=True)
    elif isinstance(block, Choices):
        console.print(choices_text(block, width), soft_wrap=True)
    elif isinstance(block, Chart):
        console.print(_chart(block, console), soft_wrap=True)
    elif isinstance(block, Commands):
        console.print(Text("\n".join(map(printable, block.lines))), soft_wrap=True)
    else:
        console.print(_table(block, console))


def _bar(bar: StackedBar, console: Console) -> Text:
    """Each segment in its letter, on a colour of its own where the terminal has colours; then the limit."""
    width, coloured = console.width, console.color_system is not None
    text = Text()
    for index, (segment, count) in enumerate(zip(bar.segments, segment_cells(bar, width), strict=True)):
        text.append(segment.key * count, style=_colour(index) if coloured else "")
    text.append(FREE * (width - len(text)), style="dim" if coloured else "")
    text.append(f"\n{scale_line(bar, width)}"[: width + 1])
    return text


_CHART_STYLES = {ALLOCATED: "bright_blue", CACHED: "bright_yellow", LIMIT: "red", CROSSED: "bold red"}


def _chart(chart: Chart, console: Console) -> Text:
    """The lines of the chart; where the terminal has colours, each kind of memory in its own."""
    lines = [Text(line) for line in chart_lines(chart, console.width)]
    if console.color_system is not None:
        for line in lines[:HEIGHT]:
            for mark, style in _CHART_STYLES.items():
                line.highlight_regex(f"{mark}+", style)
    return Text("\n").join(lines)


def _table(grid: Grid, console: Console) -> Table | Text:
    """With all its columns where they fit side by side, else without those for a wide terminal,
    else as a list.
    """
    whole = _drawn(grid, range(len(grid.columns)))
    if Measurement.get(console, console.options.update(width=MOST_WIDTH), whole).maximum <= console.width:
        return whole
    kept = [index for index, column in enumerate(grid.columns) if not column.wide_only]
    narrow = _drawn(grid, kept)
    if Measurement.get(console, console.options.update(width=MOST_WIDTH), narrow).minimum <= console.width:
        return narrow
    return _listed(grid, kept, console.width)


def _listed(grid: Grid, shown: Sequence[int], width: int) -> Text:
    """Row after row, a line for each cell after its column's title.

    No number is cut, and no word that a line can hold is broken.
    """
    text = Text()
    for row in grid.rows:
        cells = [
            (grid.columns[index].title, printable(row.cells[index]))
            for index in shown
            if row.cells[index].strip()
        ]
        for place, (title, cell) in enumerate(cells):
            indent = " " * _GUTTER if place else ""
            lines = wrap(f"{title}: {cell}" if place and title else cell, width - len(indent))
            text.append("".join(f"{indent}{line}\n" for line in lines), style=_STYLES[row.tone])
    text.rstrip()
    return text


def _drawn(grid: Grid, shown: Sequence[int]) -> Table:
    titled = any(column.title for column in grid.columns)
    table = Table(box=None, show_header=titled, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for index in shown:
        column = grid.columns[index]
        whole = column.whole or column.align == "right"
        # Else rich takes the longest word for the least width of a column that it does not wrap.
        longest = max(map(len, (column.title, *(printable(row.cells[index]) for row in grid.rows))))
        table.add_column(
            column.title,
            justify=column.align,
            no_wrap=whole,
            overflow="fold",
            min_width=longest if whole else None,
        )
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
    """A background of its own for each of the first segments, and none for those after."""
    return f"black on {_PALETTE[index]}" if index < len(_PALETTE) else ""


_INDENT, _GAP = 2, 2
_EASY_WIDTH = 80


def choices_text(choices: Choices, width: int) -> Text:
    """The list in lines of at most ``width`` characters.

    Flags too long to stand beside the facts get lines of their own; facts too long for one line follow below.
    """
    widths = [
        max(map(len, (title, *(row.facts[at] for row in choices.rows))))
        for at, title in enumerate(choices.columns)
    ]
    beside = sum(widths) + _GAP * len(widths)
    # On a wide terminal facts stay near their flags, or no eye finds the line again.
    longest = max(_INDENT + len(row.flags) + _GAP + len(row.text) for row in choices.rows)
    room = min(width, max(longest + beside, _EASY_WIDTH)) - beside
    text = Text()
    heading = (
        [printable(choices.title)] if len(choices.title) <= room else wrap(printable(choices.title), width)
    )
    for line in _with_facts(heading, choices.columns, widths, room, width):
        text.append(line, style="bold").append("\n")
    for row in choices.rows:
        left, below = _left(row, room, width, texts=choices.texts)
        for line in (*_with_facts(left, row.facts, widths, room, width), *below):
            text.append(line, style="green" if row.tone == "good" else "").append("\n")
    text.rstrip()
    return text


def _left(row: FlagChoice, room: int, width: int, *, texts: bool) -> tuple[list[str], list[str]]:
    """Flags, with their meaning where both fit beside the facts; else the meaning goes below them,
    or away.
    """
    flags, meaning = printable(row.flags), printable(row.text)
    indent = " " * _INDENT
    both = f"{indent}{flags}  {meaning}"
    if len(both) <= room:
        return [both], []
    deep = 2 * indent
    below = [f"{deep}{line}" for line in wrap(meaning, width - len(deep))] if texts and meaning else []
    alone = f"{indent}{flags}"
    if len(alone) <= room:
        return [alone], below
    return [f"{indent}{line}" for line in wrap(flags, width - _INDENT)], below


def _with_facts(
    left: list[str], facts: tuple[str, ...], widths: list[int], room: int, width: int
) -> list[str]:
    """The last line of ``left`` with the facts at the right, or these below it;
    in a row where columns do not fit ``width``.
    """
    if room < 0:
        return [
            *left,
            *(
                f"{' ' * _INDENT * 2}{line}"
                for line in wrap(", ".join(filter(None, facts)), width - _INDENT * 2)
            ),
        ]
    aligned = "".join(f"{' ' * _GAP}{fact:<{size}}" for fact, size in zip(facts, widths, strict=True))
    if len(left[-1]) <= room:
        return [*left[:-1], f"{left[-1]:<{room}}{aligned}".rstrip()]
    return [*left, f"{'':<{room}}{aligned}".rstrip()]
