"""A list of flags drawn as text: facts in columns, flags whole, what they mean beside them where there is room."""

from __future__ import annotations

from rich.text import Text

from planner.printing import printable
from planner.report.layout import Choice, Choices
from planner.report.wrapping import wrap

_INDENT, _GAP = 2, 2


def choices_text(choices: Choices, width: int) -> Text:
    """The list in lines of at most ``width`` characters.

    Flags too long to stand beside the facts get lines of their own; facts too long for one line follow below.
    """
    widths = [max(map(len, (title, *(row.facts[at] for row in choices.rows)))) for at, title in enumerate(choices.columns)]
    room = width - sum(widths) - _GAP * len(widths)
    text = Text()
    heading = [printable(choices.title)] if len(choices.title) <= room else wrap(printable(choices.title), width)
    for line in _with_facts(heading, choices.columns, widths, room, width):
        text.append(line, style="bold").append("\n")
    for row in choices.rows:
        for line in _with_facts(_left(row, room, width, texts=choices.texts), row.facts, widths, room, width):
            text.append(line, style="green" if row.tone == "good" else "").append("\n")
    text.rstrip()
    return text


def _left(row: Choice, room: int, width: int, *, texts: bool) -> list[str]:
    """Flags, with their meaning where both fit beside the facts; else the meaning above them, or not at all."""
    flags, meaning = printable(row.flags), printable(row.text)
    indent = " " * _INDENT
    both = f"{indent}{flags}  {meaning}"
    if len(both) <= room:
        return [both]
    above = [f"{indent}{line}" for line in wrap(meaning, width - _INDENT)] if texts and meaning else []
    alone = f"{indent}{flags}"
    return [*above, *([alone] if len(alone) <= room else [f"{indent}{line}" for line in wrap(flags, width - _INDENT)])]


def _with_facts(left: list[str], facts: tuple[str, ...], widths: list[int], room: int, width: int) -> list[str]:
    """The last line of ``left`` with the facts at the right, or these below it; in a row where columns do not fit ``width``."""
    if room < 0:
        return [*left, *(f"{' ' * _INDENT * 2}{line}" for line in wrap(", ".join(filter(None, facts)), width - _INDENT * 2))]
    aligned = "".join(f"{' ' * _GAP}{fact:<{size}}" for fact, size in zip(facts, widths, strict=True))
    if len(left[-1]) <= room:
        return [*left[:-1], f"{left[-1]:<{room}}{aligned}".rstrip()]
    return [*left, f"{'':<{room}}{aligned}".rstrip()]
