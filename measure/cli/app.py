"""The commands of ``measure``.  Each command is a file of its own, which imports its work when it runs."""

from __future__ import annotations

from measure.cli.bundle import bundle
from measure.cli.campaign import OPTIONS as CAMPAIGN_OPTIONS
from measure.cli.campaign import campaign
from measure.cli.check import check, env
from measure.cli.replay import replay_history
from measure.cli.run import OPTIONS as RUN_OPTIONS
from measure.cli.run import run
from measure.cli.trace import OPTIONS as TRACE_OPTIONS
from measure.cli.trace import trace
from planner.intake.flags import new_app, with_options, with_scenario_options

_HELP = """Trace or measure a fine-tuning step.

Example: measure trace --model 7b --method lora --seq 1024 --batch 2

Exit codes: 0 done, 1 internal error or a run that crashed or timed out, 2 usage or unreadable input, 3 GPU memory ran out
or does not fit (--fits), 5 host memory ran out, 6 cannot be traced or run.
"""


app = new_app(_HELP)


@app.callback()
def _root() -> None:
    """Nothing to do before the command."""


app.command("run")(with_scenario_options(run, RUN_OPTIONS))
app.command("campaign")(with_options(campaign, CAMPAIGN_OPTIONS))
app.command("check")(check)
app.command("env")(env)
app.command("bundle")(bundle)
app.command("replay")(replay_history)
app.command("trace")(with_scenario_options(trace, TRACE_OPTIONS))
