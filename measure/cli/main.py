"""Entry point: runs one command and turns every failure into one sentence and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from measure.output import write_remark
from planner.errors import ExitCode, PlannerError
from planner.interrupts import interrupts_kept
from planner.printing import close_output, prepare_streams, said_of_output

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``measure`` with ``argv`` (the process's own arguments when ``None``) and return the exit code.

    Results go to standard output, all else to standard error.
    """
    prepare_streams()
    try:
        import typer

        from measure.cli.app import app
        from planner.intake.given.flags import command_of, told_by_parser
    except ModuleNotFoundError as error:
        need = "install the package with all that it needs: pip install '.[measure]' in the project's folder"
        return _fail(f"{error.name} is not installed; {need}", ExitCode.USAGE)
    try:
        with interrupts_kept():
            result = command_of(app).main(
                list(sys.argv[1:] if argv is None else argv), prog_name="measure", standalone_mode=False
            )
    except PlannerError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has what it wanted.
        close_output()
        return int(ExitCode.FITS)
    except Exception as error:  # noqa: BLE001 - whatever happens becomes one sentence
        if sentence := said_of_output(error):
            close_output()
            return _fail(sentence, ExitCode.USAGE)
        if not callable(getattr(error, "format_message", None)):
            kind = type(error).__name__
            return _fail(
                f"internal error ({kind}: {str(error)[:200]}), please report it", ExitCode.INTERNAL_ERROR
            )
        return _fail(told_by_parser(error, "measure")[0], ExitCode.USAGE)
    return int(result or ExitCode.FITS)


def _fail(message: str, code: ExitCode) -> int:
    write_remark(message)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
