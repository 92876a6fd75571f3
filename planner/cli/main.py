"""Entry point: runs one command, writes its result, and turns every failure into one sentence and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TextIO

from planner.errors import ExitCode, PlannerError

_INTERRUPTED = 130
_DEBUG_VARIABLE = "PLANNER_DEBUG"


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``plan`` with ``argv`` (the process's own arguments when ``None``) and return the exit code.

    Results go to standard output, all else to standard error.  ``PLANNER_DEBUG=1`` shows where an unexpected failure came from.
    """
    for stream in (sys.stdout, sys.stderr):
        _escape_what_cannot_be_encoded(stream)
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except PlannerError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except ModuleNotFoundError as error:
        if (error.name or "planner").partition(".")[0] in ("planner", "measure"):
            return _unexpected(error)
        # The package is on no index: who has it has the project's folder, or a wheel.
        need = "install the package with all that it needs: pip install . in the project's folder"
        return _fail(f"{error.name} is not installed; {need}", ExitCode.USAGE)
    except BrokenPipeError:
        # The reader has what it wanted.  Python would complain once more when it flushes at exit.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
        return int(ExitCode.FITS)
    except Exception as error:
        return _unexpected(error)


def _run(arguments: list[str]) -> int:
    # Else pydantic searches every installed package for plugins of its own, which takes a tenth of a prediction.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    import typer

    from planner.cli.app import app
    from planner.cli.outcome import Outcome

    try:
        result = typer.main.get_command(app).main(arguments, prog_name="plan", standalone_mode=False)
    except typer.Abort:
        return _INTERRUPTED
    except Exception as error:
        # Typer brings its own copy of Click's exceptions or uses those of Click, depending on its version.
        if not isinstance(error, PlannerError) and callable(getattr(error, "format_message", None)):
            _refuse_values_of_switches(arguments)
            command = getattr(getattr(error, "ctx", None), "command_path", None) or "plan"
            return _fail(f"{_one_line(error)}; {command} --help lists the flags", ExitCode.USAGE)
        raise
    if isinstance(result, Outcome):
        sys.stdout.write(result.text)
        sys.stdout.flush()
        return int(result.exit_code)
    return int(result or ExitCode.FITS)


def _refuse_values_of_switches(arguments: list[str]) -> None:
    """A switch takes no value; ``--gradient-checkpointing selective`` is understood all the same, and not modelled.

    Raises:
        UsageError: a value after a switch.
        NotModelledError: a value that asks for what no formula covers.
    """
    from planner.errors import UsageError
    from planner.intake.fields import REQUEST_FIELDS, show

    for flag, value in pairwise(arguments):
        field = REQUEST_FIELDS.get(flag.removeprefix("--").replace("-", "_"))
        if flag.startswith("--") and field is not None and field.kind == "flag" and not value.startswith("-"):
            field.parse(value)
            raise UsageError(f"{field.flag} takes no value, but '{show(value)}' follows it; its opposite is --no-{field.flag[2:]}")


def _one_line(error: Exception) -> str:
    text: str = error.format_message()  # type: ignore[attr-defined]
    sentence = " ".join(text.split()).rstrip(".")
    return sentence[:1].lower() + sentence[1:]


def _fail(message: str, code: ExitCode) -> int:
    line = "".join(char if char.isprintable() else "?" for char in message)
    sys.stderr.write(f"plan: {line}\n")
    return int(code)


def _unexpected(error: Exception) -> int:
    if os.environ.get(_DEBUG_VARIABLE) == "1":
        import traceback

        traceback.print_exception(error)
    kind = type(error).__name__
    return _fail(
        f"internal error ({kind}: {str(error)[:200]}), please report it with the command line; {_DEBUG_VARIABLE}=1 shows where",
        ExitCode.INTERNAL_ERROR,
    )


def _escape_what_cannot_be_encoded(stream: TextIO) -> None:
    """A name outside the terminal's encoding is printed escaped rather than ending the program."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
