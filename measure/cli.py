"""``measure``: what the planner predicts, traced or measured.  The commands' work is imported when they run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from planner.errors import ExitCode, PlannerError, UsageError
from planner.intake.fields import REQUEST_FIELDS, Kind, RequestField, show
from planner.units import parse_size_bytes

_INTERRUPTED = 130
_METAVARS: dict[Kind, str] = {"text": "NAME", "choice": "NAME", "integer": "N", "number": "X", "size": "SIZE", "names": "NAMES"}
_EXAMPLE = "measure trace --model 7b --method lora --seq 1024 --batch 2"
_HELP = f"""Trace or measure a fine-tuning step.

Example: {_EXAMPLE}

Exit codes: 0 done, 1 internal error, 2 usage or unreadable input, 3 does not fit (--fits), 6 cannot be traced.
"""

app = typer.Typer(
    help=_HELP,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={
        "max_content_width": 100,
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)


@app.callback()
def _root() -> None:
    """Nothing to do before the command."""


def _trace(**said: Any) -> int:
    """Run one training step of the real modules on fake tensors and replay its allocations; needs no GPU."""
    limit = said.pop("fits")
    as_json = said.pop("as_json")
    all_layers = said.pop("all_layers")
    limit_bytes = None if limit is None else _size(limit)
    if said.get("model") is None or said.get("method") is None or said.get("seq") is None:
        raise UsageError(f"say at least --model, --method and --seq; for example: {_EXAMPLE}")
    scenario = _scenario(said)
    _need_torch()
    _quiet()
    from measure.trace.program import TraceOptions, trace_events
    from measure.trace.report import summarize, to_json, to_text

    summary = summarize(trace_events(scenario, TraceOptions(all_layers)), limit_bytes)
    sys.stdout.write(to_json(summary, scenario.assumptions) if as_json else to_text(summary))
    full = summary.verdict is not None and summary.verdict.out_of_memory is not None
    return int(ExitCode.GPU_MEMORY_SHORT if full else ExitCode.FITS)


def _scenario(said: dict[str, Any]) -> Any:
    from planner.intake.request import Given, ScenarioRequest, from_flags, merge
    from planner.intake.resolve import resolve

    request = from_flags(said)
    if request.get("gpu") is None and request.get("gpu_memory") is None:
        # A trace asks no card for its size; what depends on the card is the generation of its kernels.
        request = merge(ScenarioRequest({"gpu": Given("a100-80gb", "assumed")}), request)
    return resolve(request)


def _size(text: str) -> int:
    try:
        return parse_size_bytes(text)
    except ValueError:
        raise UsageError(f"--fits must be a size with a unit such as 24GiB or 80GB, but it is '{show(text)}'") from None


def _quiet() -> None:
    """Libraries warn about settings that they themselves choose here; standard error is for what the user can act on."""
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def _need_torch() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers", "peft", "accelerate") if find_spec(name) is None]
    if missing:
        raise UsageError(f"{missing[0]} is not installed; install the measure extra: pip install 'finetune-planner[measure]'")


def _with_scenario_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command(**options)`` with all flags of a scenario in its signature, where typer looks for them."""
    options = {field.name: _annotation(field) for field in REQUEST_FIELDS.values() if field.on_command_line}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in options.items()
    ]
    own: dict[str, tuple[Any, Any]] = {
        "fits": (
            Annotated[str | None, typer.Option("--fits", metavar="SIZE", help="Replay on a card that lets torch have SIZE")],
            None,
        ),
        "all_layers": (Annotated[bool, typer.Option("--all-layers", help="Run every layer, not one period of them")], False),
        "as_json": (Annotated[bool, typer.Option("--json", help="Write JSON")], False),
    }
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in own.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _annotation(field: RequestField) -> Any:
    if field.kind == "flag":
        declaration = f"{field.flag}/--no-{field.flag.removeprefix('--')}"
        return Annotated[bool | None, typer.Option(declaration, help=field.help, show_default=False)]
    return Annotated[str | None, typer.Option(field.flag, help=field.help, metavar=_METAVARS[field.kind], show_default=False)]


app.command("trace")(_with_scenario_options(_trace))


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``measure`` with ``argv`` (the process's own arguments when ``None``) and return the exit code.

    Results go to standard output, all else to standard error.
    """
    try:
        result = typer.main.get_command(app).main(
            list(sys.argv[1:] if argv is None else argv), prog_name="measure", standalone_mode=False
        )
    except PlannerError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - whatever happens becomes one sentence
        message = getattr(error, "format_message", None)
        if not callable(message):
            kind = type(error).__name__
            return _fail(f"internal error ({kind}: {str(error)[:200]}), please report it", ExitCode.INTERNAL_ERROR)
        return _fail(f"{' '.join(str(message()).split()).rstrip('.')}; measure --help lists the commands", ExitCode.USAGE)
    return int(result or ExitCode.FITS)


def _fail(message: str, code: ExitCode) -> int:
    line = "".join(char if char.isprintable() else "?" for char in message)
    sys.stderr.write(f"measure: {line}\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
