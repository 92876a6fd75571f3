"""Options of ``plan`` beside those that say what the job is, which are in ``planner/intake/flags.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from planner.intake.flags import Config, Force, OwnOptions, with_scenario_options

__all__ = ["Format", "Json", "with_prediction_options"]

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
                "--calibration", metavar="NAME", help="Fitted coefficients: a name, a .json file, or none", show_default=False
            ),
        ],
        None,
    ),
    "trace": (Annotated[bool, typer.Option("--trace", help="Show measure trace beside it, row by row (measure extra)")], False),
    "version": (Annotated[bool, typer.Option("--version", help="Print the version and exit")], False),
}


def with_prediction_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command(ctx, **options)`` with all options of a prediction in its signature."""
    return with_scenario_options(command, _ANSWER_OPTIONS, context=True)
