"""The commands of ``plan`` and their options.  Each command's work is in its own file,
imported when it runs.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from planner.cli.command_options import (
    CHECK_OPTIONS,
    SEARCH_OPTIONS,
    VALIDATE_OPTIONS,
    Format,
    Json,
    with_prediction_options,
)
from planner.cli.outcome import Outcome, chosen_format
from planner.errors import UsageError
from planner.intake.given.flags import (
    CommandUnderHeadings,
    new_app,
    with_hyphens,
    with_options,
    with_scenario_options,
)
from planner.version import __version__

_HELP = """Predict GPU memory, host RAM and step time of a fine-tuning job.

Example: plan --model 7b --method qlora --gpu 4090 --seq 1024

In brackets: what is taken without the flag; [of the stack]: plan stacks lists it.

Exit codes: 0 fits, 1 internal error, 2 usage or unreadable input, 3 GPU memory short, 4 uncertain,
5 host RAM short, 6 not modelled (no verdict).
"""


app = new_app(_HELP)


def _root(ctx: typer.Context, **given: Any) -> Outcome | None:
    if ctx.invoked_subcommand is not None:
        _refuse_flags_before(ctx)
        return None
    if given.pop("version"):
        return Outcome(f"plan {__version__}\n")
    from planner.cli.commands.predict import PredictOptions, predict

    output_format = chosen_format(given.pop("output_format"), given.pop("as_json"))
    names = ("config", "details", "explain", "force", "calibration", "trace", "plot")
    options = PredictOptions(output_format=output_format, **{name: given.pop(name) for name in names})
    return predict(given, options)


def _refuse_flags_before(ctx: typer.Context) -> None:
    """A flag of the prediction says nothing to a sub-command, so it is not dropped in silence."""
    given = sorted(name for name, value in ctx.params.items() if value not in (None, False))
    if given:
        command = ctx.invoked_subcommand
        raise UsageError(
            f"--{with_hyphens(given[0])} belongs to a prediction; put the flags of '{command}' after its "
            f"name: plan {command} ..."
        )


app.callback(invoke_without_command=True)(with_prediction_options(_root))


def _check(configs: list[str] | None, **given: Any) -> Outcome:
    """Say whether the jobs of these files fit, and what would make them fit.

    Files are TOML of plan's own or of other tools (--tool names them).  Flags win; what neither
    says is the default of the tool, then that of plan --help.

    The exit code of several is the worst, in the order 1, 2, 6, 3, 5, 4, 0.

    Example: plan check train.yaml --gpu 4090 && llamafactory-cli train train.yaml
    """
    from planner.api.files import CheckOptions
    from planner.cli.commands.check import CheckRun, check_configs

    output_format = chosen_format(given.pop("output_format"), given.pop("as_json"))
    own = {name: given.pop(name) for name in ("tool", "deepspeed", "calibration", "force")}
    accelerate, commands = given.pop("accelerate") or (), given.pop("command") or ()
    run = CheckRun(accelerate, given.pop("allow"), given.pop("write"), commands, given.pop("trace"))
    return check_configs(configs or (), given, CheckOptions(output_format, **own), run)


app.command("check", cls=CommandUnderHeadings, short_help="Will the jobs of config files fit?")(
    with_scenario_options(_check, CHECK_OPTIONS)
)


def _search(**given: Any) -> Outcome:
    """Find the best recipes under constraints.  Each flag is one, commas give choices, and what is
    not given is varied.  --gpu any, any:8 and --stack any try the common ones.

    Example: plan search --model 8b --gpu 4090 --seq 2048

    Exit codes: 0 something fits, 3 nothing does, 4 only uncertain recipes, 5 only host RAM is short,
    6 no verdict, 2 usage.
    """
    from planner.api.searches import SearchOptions
    from planner.cli.commands.search import search

    output_format = chosen_format(given.pop("output_format"), given.pop("as_json"))
    names = ("config", "calibration", "confidence", "top", "global_batch", "solve", "beyond_context")
    own = {name: given.pop(name) for name in names}
    return search(given, SearchOptions(output_format=output_format, **own))


app.command("search", cls=CommandUnderHeadings, short_help="Find the best recipes under constraints")(
    with_scenario_options(_search, SEARCH_OPTIONS)
)


@app.command("models", cls=CommandUnderHeadings, short_help="List the models of the catalog")
def models_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A part of a name, such as llama", show_default=False),
    ] = None,
    output_format: Format = None,
    as_json: Json = False,
) -> Outcome:
    """List the models of the catalog; --json has how closely each parameter count was checked."""
    from planner.cli.commands.models import list_models

    return list_models(name, chosen_format(output_format, as_json))


@app.command("gpus", cls=CommandUnderHeadings, short_help="List the GPUs of the catalog")
def gpus_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A part of a name, such as 4090", show_default=False),
    ] = None,
    output_format: Format = None,
    as_json: Json = False,
) -> Outcome:
    """List the GPUs of the catalog: memory that CUDA sees, dense rates;
    numbers without a source are marked.
    """
    from planner.cli.commands.gpus import list_gpus

    return list_gpus(name, chosen_format(output_format, as_json))


@app.command("stacks", cls=CommandUnderHeadings, short_help="List the software stacks with their defaults")
def stacks_command(output_format: Format = None, as_json: Json = False) -> Outcome:
    """List the software stacks with their defaults and switches."""
    from planner.cli.commands.stacks import list_stacks

    return list_stacks(chosen_format(output_format, as_json))


@app.command("rules", cls=CommandUnderHeadings, short_help="List combinations refused or warned about")
def rules_command(output_format: Format = None, as_json: Json = False) -> Outcome:
    """List the combinations of settings that are refused, and those that only warn."""
    from planner.cli.commands.rules import list_rules

    return list_rules(chosen_format(output_format, as_json))


def _validate(files: list[str], **given: Any) -> Outcome:
    """Score predictions against records: memory, throughput, host RAM and verdicts,
    per source and overall.
    """
    from planner.cli.commands.validate import ValidateOptions, validate_files

    output_format = chosen_format(given.pop("output_format"), given.pop("as_json"))
    return validate_files(files, ValidateOptions(output_format=output_format, **given))


app.command("validate", cls=CommandUnderHeadings, short_help="Score predictions against measured records")(
    with_options(_validate, VALIDATE_OPTIONS)
)


@app.command("calibrate", cls=CommandUnderHeadings, short_help="Fit coefficients to measured records")
def calibrate_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Record files (.csv, .jsonl) or patterns", show_default=False),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FOLDER", help="Where the calibration is written")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Calibrate one machine of your own, under this name"),
    ] = None,
    template: Annotated[
        bool, typer.Option("--template", help="Print an empty record file to fill in: > mine.csv")
    ] = False,
) -> Outcome:
    """Fit coefficients to records: for everybody (--out), or one machine's own on top of that (--name)."""
    from planner.cli.commands.calibrate import CalibrateOptions, calibrate_files

    return calibrate_files(files or [], CalibrateOptions(name, out, template))


@app.command("schema", cls=CommandUnderHeadings, short_help="Print the JSON Schema of a document")
def schema_command(
    document: Annotated[
        str,
        typer.Argument(
            metavar="DOCUMENT",
            help="prediction, bounds, check, error, record, search, trace, validate, beside "
            "(plan --trace), models, gpus, stacks or rules",
            show_default=False,
        ),
    ] = "prediction",
) -> Outcome:
    """Print the JSON Schema of a document that plan writes or reads."""
    from planner.cli.commands.schema import print_schema

    return print_schema(document)
