"""Command-line options made from the one table of what a user can say, ``REQUEST_FIELDS``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from planner.intake.fields import REQUEST_FIELDS, Kind, RequestField

_METAVARS: dict[Kind, str] = {"text": "NAME", "choice": "NAME", "integer": "N", "number": "X", "size": "SIZE", "names": "NAMES"}

Format = Annotated[str | None, typer.Option("--format", metavar="NAME", help="human, json or markdown", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Short for --format json")]

# How to read and answer, beside what the job is.
_ANSWER_OPTIONS: dict[str, tuple[Any, Any]] = {
    "config": (
        Annotated[
            str | None, typer.Option("--config", metavar="FILE", help="TOML file with the flags' names as keys; flags win")
        ],
        None,
    ),
    "output_format": (Format, None),
    "as_json": (Json, False),
    "explain": (Annotated[bool, typer.Option("--explain", help="Show each formula with its numbers and source")], False),
    "force": (
        Annotated[bool, typer.Option("--force", help="Turn refused combinations into warnings; the verdict stays what it is")],
        False,
    ),
    "version": (Annotated[bool, typer.Option("--version", help="Print the version and exit")], False),
}


def request_fields() -> Iterator[RequestField]:
    """Fields that are flags, in the order of help."""
    return (field for field in REQUEST_FIELDS.values() if field.on_command_line)


def with_prediction_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command(ctx, **options)`` with all options of a prediction in its signature, where typer looks for them.

    A field that is not given is ``None``.  Values stay text (or booleans): the intake parses flags, files and records alike and
    words the errors.
    """
    options = {field.name: (_annotation(field), None) for field in request_fields()} | _ANSWER_OPTIONS
    parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _annotation(field: RequestField) -> Any:
    if field.kind == "flag":
        declaration = f"{field.flag}/--no-{field.flag.removeprefix('--')}"
        return Annotated[bool | None, typer.Option(declaration, help=field.help, show_default=False)]
    return Annotated[str | None, typer.Option(field.flag, help=_help(field), metavar=_METAVARS[field.kind], show_default=False)]


def _help(field: RequestField) -> str:
    if all(choice in field.help for choice in field.choices):
        return field.help
    return f"{field.help}: {', '.join(field.choices)}"
