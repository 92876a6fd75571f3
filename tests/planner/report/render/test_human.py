"""Text for people: widths, colours, tables."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from planner.report.prediction.sections import build_sections
from planner.report.prediction.short import MAX_LINES, short_text
from planner.report.render import human
from planner.report.render.layout import Choices, Column, FlagChoice, Grid, Row, Section
from tests.planner.report.prediction.made import draw, subject


def test_plain_text_has_no_escape_codes_and_no_trailing_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is no terminal gets plain text,
    even where the environment asks for colours of a terminal.
    """
    monkeypatch.setenv("TERM", "xterm-256color")
    text = human.to_text(build_sections(subject()), human.make_console(io.StringIO()))
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_no_word_of_a_table_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that is not wrapped is as wide as its longest cell, not as its longest word:
    where that leaves another one less than a word, the table becomes a list.
    """
    columns = (Column("cost of each of all samples", "right"), Column("recipe"))
    grid = Grid(columns, (Row(("12 USD", "fsdp, optimizer+params, checkpointing")),))
    for width in range(40, 60):
        monkeypatch.setenv("COLUMNS", str(width))
        text = human.to_text([Section("", (grid,))], human.make_console(io.StringIO()))
        assert "optimizer+params," in text, text


class FakeTerminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A colour terminal gets colours, and none with NO_COLOR."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in human.to_text(build_sections(subject()), human.make_console(FakeTerminal()))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in human.to_text(build_sections(subject()), human.make_console(FakeTerminal()))


def test_colours_change_no_character() -> None:
    """Colours change how the report looks, not what it says:
    the bar has its letters under the colours, too.
    """
    console = Console(
        file=io.StringIO(), width=80, color_system="standard", force_terminal=True, highlight=False
    )
    coloured = human.to_text(build_sections(subject()), console)
    assert coloured.count("\x1b[30;10") >= 5
    without_codes = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    plain = draw(subject(), width=80).splitlines()
    # Titles have a line below them where there is no colour.
    rules = re.compile(r"-+$")
    assert [line for line in plain if not rules.match(line)] == [
        line.rstrip() for line in without_codes.splitlines() if not rules.match(line)
    ]


@pytest.mark.parametrize(
    ("columns", "width"),
    [(None, 80), ("0", 80), ("-3", 80), ("x", 80), ("9" * 30, 80), ("40", 40), ("7", 40), ("132", 132)],
)
def test_a_width_that_is_none_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int
) -> None:
    """Where no terminal says its width, COLUMNS does; 80 otherwise,
    and never so few that nothing can be said.
    """
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    console = human.make_console(io.StringIO())
    assert console.width == width
    text = short_text(subject(), console)
    assert text.startswith("FITS: ")
    assert len(text.splitlines()) <= MAX_LINES
    assert max(map(len, text.splitlines())) <= width


WIDE = Grid(
    (
        Column("id", whole=True),
        Column("parameters", "right"),
        Column("only where there is room", wide_only=True),
        Column("way"),
    ),
    (
        Row(("a-model-with-a-long-name", "1,234,567,890", "extra", "published-exactly"), "good"),
        Row(("another\x1b[31m", "", "", "")),
    ),
)


def test_a_table_without_room_becomes_a_list() -> None:
    """No title is broken into letters, no number loses its last digits."""
    text = human.to_text((Section("", (WIDE,)),), Console(file=io.StringIO(), width=40, color_system=None))
    assert text.splitlines() == [
        "a-model-with-a-long-name",
        "  parameters: 1,234,567,890",
        "  way: published-exactly",
        "another?[31m",
    ]


def test_a_table_that_has_room_stays_one() -> None:
    """Above the width of its words, with the columns for a wide terminal or without."""
    for width, columns in ((120, 4), (70, 3)):
        text = human.to_text(
            (Section("", (WIDE,)),), Console(file=io.StringIO(), width=width, color_system=None)
        )
        assert len(re.split(r"\s{2,}", text.splitlines()[0])) == columns


def test_an_old_windows_console_gets_no_escape_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would show them, as rich writes to it in another way than by text."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    coloured = short_text(subject(), human.make_console(Terminal()))
    monkeypatch.setattr(human, "detect_legacy_windows", lambda: True)
    assert "\x1b[" in coloured
    assert "\x1b" not in short_text(subject(), human.make_console(Terminal()))


def test_what_flags_mean_stands_beside_or_below_them_never_above() -> None:
    """Flags lead their row, with the facts; a meaning without room is indented further, or left out."""
    rows = (
        FlagChoice("--batch 4", "instead of batch=1", ("+3 GiB",)),
        FlagChoice("--no-gradient-checkpointing", "instead of gradient_checkpointing=true", ("+8 GiB",)),
    )
    for texts in (True, False):
        lines = str(human.choices_text(Choices("", ("memory",), rows, texts=texts), 60)).splitlines()[1:]
        assert lines[0].split() == ["--batch", "4", "instead", "of", "batch=1", "+3", "GiB"]
        assert lines[1].split() == ["--no-gradient-checkpointing", "+8", "GiB"]
        assert lines[2:] == (["    instead of gradient_checkpointing=true"] if texts else [])


def test_facts_stay_near_their_flags_on_a_wide_terminal() -> None:
    """The row is as wide as what it says, from 80 columns on."""
    for flags, width in (("--batch 4", 80), ("--offload optimizer+params " * 4, 149)):
        rows = (FlagChoice(flags.strip(), "instead of batch=1", ("+3 GiB",)),)
        lines = str(human.choices_text(Choices("", ("memory",), rows), 300)).splitlines()
        assert max(map(len, lines)) <= width
