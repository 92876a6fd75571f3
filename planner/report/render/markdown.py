"""Sections -> GitHub-flavoured markdown."""

from __future__ import annotations

from collections.abc import Sequence

from planner.printing import printable
from planner.report.render.bar import letter_line, scale_line
from planner.report.render.chart import chart_lines
from planner.report.render.layout import (
    Block,
    Chart,
    Choices,
    Commands,
    Grid,
    Note,
    Section,
    StackedBar,
)

_BAR_WIDTH = 80


def to_markdown(sections: Sequence[Section]) -> str:
    """The report as one markdown text, ending in a newline."""
    parts: list[str] = []
    for section in sections:
        if section.title:
            parts.append(f"## {section.title}")
        parts += [text for text in map(_block, section.blocks) if text]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Note):
        text = _escape(block.text)
        return f"**{text}**" if block.tone in ("good", "bad", "strong", "warn") else text
    if isinstance(block, StackedBar):
        return f"```\n{letter_line(block, _BAR_WIDTH)}\n{scale_line(block, _BAR_WIDTH)}\n```"
    if isinstance(block, Choices):
        return f"**{_escape(block.title)}**\n\n{_choices(block)}" if block.title else _choices(block)
    if isinstance(block, Chart):
        drawn = "\n".join(chart_lines(block, _BAR_WIDTH))
        return f"```\n{drawn}\n```"
    if isinstance(block, Commands):
        lines = "\n".join(map(printable, block.lines))
        return f"```sh\n{lines}\n```"
    return _grid(block)


def _choices(choices: Choices) -> str:
    """Flags as code, to be copied."""
    lines = [_line(["flags", "what", *choices.columns]), _line(["---"] * (2 + len(choices.columns)))]
    lines += [
        _line([f"`{printable(row.flags)}`", *map(_escape, (row.text, *row.facts))]) for row in choices.rows
    ]
    return "\n".join(lines)


def _grid(grid: Grid) -> str:
    titles = [_escape(column.title) or " " for column in grid.columns]
    rules = ["---:" if column.align == "right" else "---" for column in grid.columns]
    lines = [_line(titles), _line(rules)]
    for row in grid.rows:
        cells = [_escape(cell) for cell in row.cells]
        lines.append(_line([f"**{cell}**" if cell and row.tone == "strong" else cell for cell in cells]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """``text`` with the characters that markdown would interpret in running text or a table cell escaped."""
    safe = printable(text)
    for char in "\\`*_|<>[]":
        safe = safe.replace(char, f"\\{char}")
    return safe
