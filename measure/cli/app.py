"""The commands of ``measure``.  Each command is a file of its own, which imports its work when it runs."""

from __future__ import annotations

import typer

from measure.cli.bundle import bundle
from measure.cli.campaign import campaign
from measure.cli.check import check, env
from measure.cli.replay import replay_history
from measure.cli.run import OPTIONS as RUN_OPTIONS
from measure.cli.run import run
from measure.cli.trace import OPTIONS as TRACE_OPTIONS
from measure.cli.trace import trace
from planner.intake.flags import with_scenario_options

_HELP = """Trace or measure a fine-tuning step.

Example: measure trace --model 7b --method lora --seq 1024 --batch 2

Exit codes: 0 done, 1 internal error or a run that crashed or timed out, 2 usage or unreadable input, 3 GPU memory ran out
or does not fit (--fits), 5 host memory ran out, 6 cannot be traced or run.
"""


def _hyphens(name: str) -> str:
    return name.replace("_", "-")


app = typer.Typer(
    help=_HELP,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich cuts long flag names in a narrow terminal
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"], "token_normalize_func": _hyphens},
)


@app.callback()
def _root() -> None:
    """Nothing to do before the command."""


app.command("run")(with_scenario_options(run, RUN_OPTIONS))
app.command("campaign")(campaign)
app.command("check")(check)
app.command("env")(env)
app.command("bundle")(bundle)
app.command("replay")(replay_history)
app.command("trace")(with_scenario_options(trace, TRACE_OPTIONS))
