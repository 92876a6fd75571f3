"""Command-line options made from the one table of what a user can say, ``REQUEST_FIELDS``;
for both command lines.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from planner.errors import MAX_NEAREST, UnknownNameError, UsageError, is_like, show
from planner.intake.given.default_texts import DEFAULT_TEXTS
from planner.intake.given.fields import REQUEST_FIELDS, headings
from planner.intake.given.other_words import in_our_words
from planner.intake.given.request_field import Kind, RequestField
from planner.printing import in_short

__all__ = ["Config", "Force", "OwnOptions", "request_fields", "switch", "valued", "with_scenario_options"]

_METAVARS: dict[Kind, str] = {
    "text": "NAME",
    "choice": "NAME",
    "integer": "N",
    "number": "X",
    "size": "SIZE",
    "names": "NAMES",
}

# Two words that begin alike have so many letters, so that --lr is not like --lora-rank.
_LEAST_LETTERS = 3

# Name -> annotation for typer, and default.
OwnOptions = Mapping[str, tuple[Any, Any]]

Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Config file: TOML with the flags' names as keys, or one that plan check reads; flags win",
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Turn refused combinations into warnings; the verdict stays what it is"),
]


def switch(flag: str, text: str) -> tuple[Any, bool]:
    """An option of a command's own that is off unless it is given."""
    return Annotated[bool, typer.Option(flag, help=text)], False


def valued(flag: str, metavar: str, text: str, kind: Any = str) -> tuple[Any, None]:
    """An option of a command's own with a value, or with several where ``kind`` is a list."""
    return Annotated[kind | None, typer.Option(flag, metavar=metavar, help=text, show_default=False)], None


def request_fields() -> Iterator[RequestField]:
    """Fields that are flags, in the order of help."""
    return (field for field in REQUEST_FIELDS.values() if field.on_command_line)


_EMPTY = inspect.Parameter.empty


class _UnderHeadings:
    """Help that lists a hundred flags under headings, those of the command itself first."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Each list in the order in which its flags were declared."""
        lists: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for each in self.get_params(ctx):  # type: ignore[attr-defined]
            if (shown := each.get_help_record(ctx)) is not None:
                # typer 0.29 puts the type of an argument behind its name: "FILE... <list[str]>".
                shown = (re.sub(r" <[^>]*>$", "", shown[0]), shown[1])
                # --help itself is click's own option under typer 0.15, which knows no headings.
                heading = getattr(each, "rich_help_panel", None) or f"{each.param_type_name.title()}s"
                lists.setdefault(heading, []).append(shown)
        for heading, rows in lists.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class CommandUnderHeadings(_UnderHeadings, TyperCommand):
    """A command with the flags of a job."""


class _CommandsFirst(_UnderHeadings, TyperGroup):
    """Help that names the commands before the flags."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """What it does, then the commands."""
        super().format_help_text(ctx, formatter)
        super().format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Nothing: they stand above the flags."""


def new_app(help_text: str) -> typer.Typer:
    """An empty command line as both programs have it: flags with ``-`` or ``_``,
    plain help of at most 100 columns.
    """
    return typer.Typer(
        cls=_CommandsFirst,
        help=help_text,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich cuts long flag names in a narrow terminal
        context_settings={
            "max_content_width": 100,
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": with_hyphens,
        },
    )


@cache
def command_of(app: typer.Typer) -> Any:
    """What runs the commands of ``app``; made once in a process that asks often,
    because it takes longer than many an answer.
    """
    command = typer.main.get_command(app)
    for each in (command, *getattr(command, "commands", {}).values()):
        for option in each.params:
            if not option.required and option.callback is None and not option.multiple and option.nargs == 1:
                option.process_value = partial(_given_alone, option.process_value, (option.opts or ("",))[0])
    return command


def _given_alone(converted: Callable[[Any, Any], Any], flag: str, context: Any, value: Any) -> Any:
    """``value`` converted, if one was given: typer 0.29 makes a pydantic adapter for a flag (_coercion.py
    build_runtime_param) before it looks, which for a hundred flags takes longer than the answer's own replay.

    Raises:
        UsageError: the next flag stands where the value should, and the word behind it would be a command.
    """
    if flag.startswith("--") and isinstance(value, str) and value.startswith("--"):
        raise UsageError(f"{flag} has no value: behind it stands {show(value)}")
    return None if value is None else converted(context, value)


def told_by_parser(error: Exception, program: str) -> tuple[str, tuple[str, ...]]:
    """One sentence on words that are no command line of ``program``, and the nearest names.

    ``error``: Click's, or that of Typer's own copy of it.  A flag of another tool is named as it is called
    here.  Of any other, those come first that have a word of it, however different the rest.
    """
    names = tuple(getattr(error, "possibilities", None) or ())
    text: str = error.format_message()  # type: ignore[attr-defined]
    # A known flag without its value has a name, too, and no others that it may be.
    flag = getattr(error, "option_name", None) if hasattr(error, "possibilities") else None
    if flag:
        meant = [name for name in (in_our_words(flag),) if name and name.split()[0] in _flags_of(error)]
        # The parser compares dashes, too.
        near = (name for name in names if is_like(flag.strip("-"), name.strip("-")))
        names = tuple(meant or dict.fromkeys((*_flags_like(flag, error), *near)))[:MAX_NEAREST]
        nearest = "; here it is " if meant else "; nearest: " if names else ""
        text = f"no such option: {flag}{nearest}{', '.join(names)}"
    command, listed = getattr(getattr(error, "ctx", None), "command_path", None) or program, "flags"
    if unknown := re.match(r"(No such command (['\"])(.*?)\2)", text, re.DOTALL):
        # Typer asks for the nearest only from 0.16 on.  Who names no command may have named settings.
        commands = list(getattr(error.ctx.command, "commands", ()))  # type: ignore[attr-defined]
        listed, names = "commands", UnknownNameError("command", unknown[3], commands).nearest
        by_flags = "settings are given by flags (--model 7b), names with a space in quotes"
        way = f"nearest: {', '.join(names)}" if names else by_flags
        text = f"{unknown[1]}; {way}"
    sentence = in_short(text).rstrip(".")
    listed = "commands" if sentence == "Missing command" else listed
    return f"{sentence[:1].lower()}{sentence[1:]}; {command} --help lists the {listed}", names


def _flags_of(error: Any) -> list[str]:
    """Flags of the command that was asked."""
    context = getattr(error, "ctx", None)
    return [] if context is None else [name for each in context.command.params for name in each.opts]


def _flags_like(flag: str, error: Any) -> list[str]:
    """Flags of the same command by their share of words that begin alike, the largest share first."""
    written = _words(flag)
    shares: dict[str, float] = {}
    for name in _flags_of(error):
        words = _words(name)
        alike = [word for word in words if any(_begin_alike(word, other) for other in written)]
        if alike:
            shares[name] = len(alike) / len(words)
    return sorted(shares, key=lambda name: -shares[name])


def _words(flag: str) -> list[str]:
    return flag.strip("-").replace("_", "-").lower().split("-")


def _begin_alike(one: str, other: str) -> bool:
    return min(len(one), len(other)) >= _LEAST_LETTERS and (one.startswith(other) or other.startswith(one))


def with_hyphens(name: str) -> str:
    """A name as flags spell it."""
    return name.replace("_", "-")


def with_scenario_options(
    command: Callable[..., Any], own: OwnOptions, *, context: bool = False, alone: bool = False
) -> Callable[..., Any]:
    """``command(**options)`` with all flags of a scenario and its ``own`` in its signature,
    where typer looks for them.  ``alone``: flags are all that says what the job is, so help has what is taken
    without them; elsewhere a file says it, or a search varies it.

    A field that is not given is ``None``.  Values stay text (or booleans): the intake parses flags, files and
    records alike and words the errors.  With ``context`` the command takes typer's context first.
    """
    options = {field.name: (_annotation(field, _help(field, alone)), None) for field in request_fields()}
    options |= dict(own)
    return with_options(command, options, context=context)


def with_options(
    command: Callable[..., Any], options: OwnOptions, *, context: bool = False
) -> Callable[..., Any]:
    """``command(**options)`` with ``options`` in its signature; a default of ``...`` makes one required."""
    parameters = (
        [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
        if context
        else []
    )
    parameters += [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_EMPTY if default is ... else default,
            annotation=annotation,
        )
        for name, (annotation, default) in options.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _annotation(field: RequestField, text: str) -> Any:
    heading = headings()[field.name]
    if field.kind == "flag":
        declaration = f"{field.flag}/--no-{field.flag.removeprefix('--')}"
        flag = typer.Option(declaration, help=text, show_default=False, rich_help_panel=heading)
        return Annotated[bool | None, flag]
    option = typer.Option(
        field.flag,
        help=text,
        metavar=_METAVARS[field.kind],
        show_default=False,
        autocompletion=_completion(field),
        rich_help_panel=heading,
    )
    return Annotated[str | None, option]


def _completion(field: RequestField) -> Callable[[str], list[str]] | None:
    """What a shell offers for the value of a flag: its choices, or the ids of its catalog."""
    catalog = _CATALOGS.get(field.name)
    if not (catalog or field.choices):
        return None

    def complete(incomplete: str) -> list[str]:
        return [name for name in (catalog() if catalog else field.choices) if name.startswith(incomplete)]

    return complete


def _models() -> tuple[str, ...]:
    from planner.catalog.models import model_ids

    return model_ids()


def _gpus() -> tuple[str, ...]:
    from planner.catalog.gpus import gpu_ids

    return gpu_ids()


def _stacks() -> tuple[str, ...]:
    from planner.catalog.stacks import stack_ids

    return stack_ids()


_CATALOGS: Mapping[str, Callable[[], tuple[str, ...]]] = {"model": _models, "gpu": _gpus, "stack": _stacks}


def _help(field: RequestField, alone: bool) -> str:
    told = all(choice in field.help for choice in field.choices)
    text = field.help if told else f"{field.help}: {', '.join(field.choices)}"
    default = DEFAULT_TEXTS.get(field.name) if alone else None
    return text if default is None else f"{text} [{default}]"
