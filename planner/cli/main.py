"""Entry point: runs one command, writes its result,
and turns every failure into one sentence and an exit code.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from itertools import pairwise

from planner.errors import ExitCode, PlannerError
from planner.interrupts import interrupts_kept
from planner.printing import close_output, prepare_streams, printable, said_of_output

_INTERRUPTED = 130
_DEBUG_VARIABLE = "PLANNER_DEBUG"
# New objects between two looks for cycles that nothing refers to: a command makes few of those,
# and is soon over.
_OBJECTS = 500_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``plan`` with ``argv`` (the process's own arguments when ``None``) and return the exit code.

    Results go to standard output, all else to standard error; where JSON is asked for, a failure is a
    document on standard output, too.  ``PLANNER_DEBUG=1`` shows where an unexpected failure came from.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(_OBJECTS)
    # The process ends, and looking once more takes a sixth of a prediction.
    atexit.register(gc.freeze)
    prepare_streams()
    try:
        with interrupts_kept():
            return _run_or_tell(arguments)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has what it wanted.
        close_output()
        return int(ExitCode.FITS)


class _CommandError(Exception):
    """One sentence, the exit code, and the nearest names where one is unknown."""

    def __init__(self, message: str, code: ExitCode, suggestions: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message, self.code, self.suggestions = message, code, suggestions


def _run_or_tell(arguments: list[str]) -> int:
    try:
        return _run(arguments)
    except BrokenPipeError:
        raise
    except Exception as error:
        return _tell(_told_of(error), as_json=_asks_for_json(arguments))


def _told_of(error: Exception) -> _CommandError:
    if isinstance(error, _CommandError):
        return error
    if isinstance(error, PlannerError):
        return _CommandError(str(error), error.exit_code, getattr(error, "nearest", ()))
    if isinstance(error, ModuleNotFoundError) and (error.name or "planner").partition(".")[0] not in (
        "planner",
        "measure",
    ):
        # The package is on no index: who has it has the project's folder, or a wheel.
        need = "install the package with all that it needs: pip install . in the project's folder"
        return _CommandError(f"{error.name} is not installed; {need}", ExitCode.USAGE)
    if sentence := said_of_output(error):
        return _CommandError(sentence, ExitCode.USAGE)
    return _unexpected(error)


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether the answer was to be JSON, by the words alone: they may be what is wrong."""
    formats = [value for name, value in pairwise(arguments) if name == "--format"]
    formats += [word.removeprefix("--format=") for word in arguments if word.startswith("--format=")]
    return "--json" in arguments or "json" in (name.strip().lower() for name in formats)


def _run(arguments: list[str]) -> int:
    # Else pydantic searches every installed package for plugins of its own,
    # which takes a tenth of a prediction.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    import typer

    from planner.cli.app import app
    from planner.cli.outcome import Outcome
    from planner.intake.given.flags import command_of, told_by_parser

    _refuse_lists_given_twice(arguments)
    try:
        result = command_of(app).main(arguments, prog_name="plan", standalone_mode=False)
    except typer.Abort:
        return _INTERRUPTED
    except Exception as error:
        # Typer brings its own copy of Click's exceptions or uses those of Click, depending on its version.
        if not isinstance(error, PlannerError) and callable(getattr(error, "format_message", None)):
            _refuse_values_of_switches(arguments)
            sentence, names = told_by_parser(error, "plan")
            raise _CommandError(sentence, ExitCode.USAGE, names) from None
        raise
    if isinstance(result, Outcome):
        sys.stdout.write(result.text)
        sys.stdout.flush()
        return int(result.exit_code)
    return int(result or ExitCode.FITS)


def _refuse_values_of_switches(arguments: list[str]) -> None:
    """A switch takes no value; ``--gradient-checkpointing selective`` is understood all the same,
    and not modelled.
    """
    from planner.errors import UsageError, show
    from planner.intake.given.fields import REQUEST_FIELDS

    for flag, value in pairwise(arguments):
        field = REQUEST_FIELDS.get(flag.removeprefix("--").replace("-", "_"))
        if flag.startswith("--") and field is not None and field.kind == "flag" and not value.startswith("-"):
            field.parse(value)
            opposite = field.flag.replace("--", "--no-", 1)
            raise UsageError(
                f"{field.flag} takes no value, but '{show(value)}' follows it; its opposite is {opposite}"
            )


def _refuse_lists_given_twice(arguments: list[str]) -> None:
    """A list is given once: of two the parser keeps the last, and drops the first one in silence."""
    from planner.errors import UsageError
    from planner.intake.given.fields import REQUEST_FIELDS

    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    given = [word.partition("=")[0] for word in own if word.startswith("--")]
    lists = [field.flag for field in REQUEST_FIELDS.values() if field.kind == "names"]
    for flag in lists:
        if given.count(flag) > 1:
            raise UsageError(f"{flag} is given twice: write one, with ';' between its parts")


def _tell(failure: _CommandError, *, as_json: bool) -> int:
    line = printable(failure.message)
    sys.stderr.write(f"plan: {line}\n")
    if as_json:
        from planner.report.error_document import error_json

        try:
            sys.stdout.write(error_json(int(failure.code), line, failure.suggestions))
            sys.stdout.flush()
        except OSError:
            # The sentence above is all that can be said.
            close_output()
    return int(failure.code)


def _unexpected(error: Exception) -> _CommandError:
    if os.environ.get(_DEBUG_VARIABLE) == "1":
        import traceback

        traceback.print_exception(error)
    kind = type(error).__name__
    return _CommandError(
        f"internal error ({kind}: {str(error)[:200]}), please report it with the command line; "
        f"{_DEBUG_VARIABLE}=1 shows where",
        ExitCode.INTERNAL_ERROR,
    )
