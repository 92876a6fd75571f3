"""What a command hands back: text for standard output and an exit code.  Only ``main`` writes and exits."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.errors import ExitCode, UnknownNameError

if TYPE_CHECKING:
    from planner.report.render.layout import Section

FORMATS = ("human", "json", "markdown")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one command."""

    text: str
    exit_code: ExitCode = ExitCode.FITS


def chosen_format(output_format: str | None, as_json: bool) -> str:
    """Format that ``--format`` and ``--json`` ask for.

    Raises:
        UnknownNameError: no such format.
    """
    name = (output_format or ("json" if as_json else "human")).strip().lower()
    if name not in FORMATS:
        raise UnknownNameError("format", name[:60], FORMATS, hint=f"allowed: {', '.join(FORMATS)}")
    return "json" if as_json else name


def human_text(sections: Sequence[Section]) -> str:
    """Sections drawn for standard output."""
    from planner.report.render.human import make_console, to_text

    return to_text(sections, make_console(sys.stdout))


def drawn(sections: Sequence[Section], output_format: str, code: ExitCode) -> Outcome:
    """Sections as markdown or for standard output, with an exit code."""
    if output_format == "markdown":
        from planner.report.render.markdown import to_markdown

        return Outcome(to_markdown(sections), code)
    return Outcome(human_text(sections), code)


def json_text(value: Any) -> str:
    """``value`` as indented JSON in ASCII, for terminals of any encoding; NaN and infinity are refused,
    as JSON has neither.
    """
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
