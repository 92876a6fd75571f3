"""The commands of ``measure``.  Each command is a file of its own, which imports its work when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from measure.cli.bundle import bundle
from measure.cli.campaign import OPTIONS as CAMPAIGN_OPTIONS
from measure.cli.campaign import campaign
from measure.cli.check import check, env
from measure.cli.describe import describe
from measure.cli.replay import replay_history
from measure.cli.run import OPTIONS as RUN_OPTIONS
from measure.cli.run import run
from measure.cli.trace import OPTIONS as TRACE_OPTIONS
from measure.cli.trace import trace
from planner.intake.given.flags import (
    CommandUnderHeadings,
    new_app,
    with_options,
    with_scenario_options,
)
from planner.version import __version__

_HELP = """Trace or measure a fine-tuning step.

Example: measure trace --model 7b --method lora --seq 1024 --batch 2

Exit codes: 0 done, 1 internal error or a run that crashed or timed out, 2 usage or unreadable input,
3 GPU memory ran out or does not fit (--fits), 5 host memory ran out, 6 cannot be traced or run.
"""


app = new_app(_HELP)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"measure {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Nothing else to do before the command."""
    del version


# What the list of commands says; longer first sentences would be cut there.
app.command(
    "run", cls=CommandUnderHeadings, short_help="Run training steps of one job here and record what they need"
)(with_scenario_options(run, RUN_OPTIONS))
app.command(
    "campaign", cls=CommandUnderHeadings, short_help="Run many cases from a file; goes on where it stopped"
)(with_options(campaign, CAMPAIGN_OPTIONS))
app.command("check", cls=CommandUnderHeadings, short_help="Whether records can be trusted, and why not")(
    check
)
app.command(
    "env", cls=CommandUnderHeadings, short_help="What a measurement on this machine would be made on"
)(env)
app.command("bundle", cls=CommandUnderHeadings, short_help="Wheels for a machine without a network")(bundle)
app.command(
    "describe", cls=CommandUnderHeadings, short_help="Parameters of a model that plan has no reader for"
)(describe)
app.command("replay", cls=CommandUnderHeadings, short_help="Replay a recorded allocator history")(
    replay_history
)
app.command("trace", cls=CommandUnderHeadings, short_help="Trace one step of the real modules; needs no GPU")(
    with_scenario_options(trace, TRACE_OPTIONS)
)
