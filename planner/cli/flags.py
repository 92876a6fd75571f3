"""Options of ``plan`` beside those that say what the job is, which are in ``planner/intake/flags.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from planner.intake.flags import Config, Force, OwnOptions, with_scenario_options

__all__ = ["VALIDATE_OPTIONS", "Format", "Json", "with_prediction_options"]

Format = Annotated[str | None, typer.Option("--format", metavar="NAME", help="human, json or markdown", show_default=False)]

Json = Annotated[bool, typer.Option("--json", help="Short for --format json")]

# How to read and answer, beside what the job is.
_ANSWER_OPTIONS: OwnOptions = {
    "config": (Config, None),
    "output_format": (Format, None),
    "as_json": (Json, False),
    "explain": (Annotated[bool, typer.Option("--explain", help="Show each formula with its numbers and source")], False),
    "force": (Force, False),
    "calibration": (
        Annotated[
            str | None,
            typer.Option(
                "--calibration",
                metavar="NAME",
                help="Fitted coefficients: a name, a .json file, or none; by default those of this machine, or default",
                show_default=False,
            ),
        ],
        None,
    ),
    "trace": (Annotated[bool, typer.Option("--trace", help="Show measure trace beside it, row by row (measure extra)")], False),
    "version": (Annotated[bool, typer.Option("--version", help="Print the version and exit")], False),
}

VALIDATE_OPTIONS: OwnOptions = {
    "files": (
        Annotated[
            list[str], typer.Argument(metavar="FILE...", help="Record files (.csv, .jsonl) or patterns", show_default=False)
        ],
        ...,
    ),
    "rows": (Annotated[bool, typer.Option("--rows", help="List each row")], False),
    "explain": (
        Annotated[str | None, typer.Option("--explain", metavar="ROW", help="Walk through one row instead, by its id")],
        None,
    ),
    "history": (
        Annotated[bool, typer.Option("--history", help="Terms from the allocator histories beside the records, too")],
        False,
    ),
    "cv": (Annotated[str, typer.Option("--cv", metavar="NAME", help="Hold out: none, or source")], "none"),
    "calibration": (
        Annotated[
            str | None,
            typer.Option("--calibration", metavar="NAME", help="A name, a .json file, or none; by default the one that ships"),
        ],
        None,
    ),
    "output_format": (Format, None),
    "as_json": (Json, False),
}


def with_prediction_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command(ctx, **options)`` with all options of a prediction in its signature."""
    return with_scenario_options(command, _ANSWER_OPTIONS, context=True)
