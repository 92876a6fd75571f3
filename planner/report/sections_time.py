"""Sections about time: the parts of a step, the rates that follow, the whole run and its cost."""

from __future__ import annotations

from planner.domain.prediction import Prediction, TimePrediction
from planner.domain.scenario import Scenario
from planner.domain.term import TimeTerm
from planner.report.intervals import step_interval
from planner.report.layout import Column, Grid, Note, Row, Section
from planner.report.numbers import duration, percent, plain_number, rate
from planner.units import MILLI_S, format_seconds

_COLUMNS = (
    Column("part"),
    Column("ms", "right"),
    Column("share", "right"),
    Column("hidden ms", "right"),
    Column("formula in planner.throughput", wide_only=True),
)


def time_section(prediction: Prediction) -> Section:
    """Step time with its parts, samples and tokens per second, model FLOP utilisation."""
    time = prediction.time
    if time is None:
        return Section("Step time", (Note("Not predicted: the rates of this card are not known.", "warn"),))
    rows = [_row(term, float(time.step_s)) for term in time.terms if float(term.seconds) > 0]
    rows.append(Row(("= step", _ms(float(time.step_s)), "", "", ""), "strong"))
    interval = step_interval(prediction)
    notes = (Note(f"{interval}."),) if interval else ()
    return Section("Time of one optimizer step", (Grid(_COLUMNS, tuple(rows)), Note(_rates(time)), *notes))


def run_section(prediction: Prediction, scenario: Scenario) -> Section:
    """Run time and cost, where the user says how many samples there are."""
    time, run = prediction.time, scenario.run
    if time is None or run.n_samples is None or time.run_time_s is None:
        return Section("", ())
    epochs = f"{plain_number(run.epochs)} epoch{'' if run.epochs == 1 else 's'}"
    text = f"{run.n_samples:,} samples x {epochs}: {format_seconds(float(time.run_time_s))}"
    if run.eval_samples is not None:
        text += f", with {run.eval_samples:,} samples evaluated after each epoch"
    if time.cost_usd is not None and run.usd_per_gpu_hour is not None:
        n_gpus = scenario.hardware.world_size
        gpus = f"{n_gpus} GPU{'s' if n_gpus > 1 else ''}"
        text += f", {float(time.cost_usd):,.2f} USD at {run.usd_per_gpu_hour:g} USD per GPU-hour on {gpus}"
    return Section("Whole run", (Note(f"{text}."),))


def _row(term: TimeTerm, step_s: float) -> Row:
    hidden = float(term.overlapped_s)
    visible = max(float(term.seconds) - hidden, 0.0)
    share = percent(visible / step_s) if step_s > 0 else ""
    hidden_ms = _ms(hidden) if hidden > 0 else ""
    return Row(
        (
            term.name.replace("_", " "),
            _ms(float(term.seconds)),
            share,
            hidden_ms,
            term.formula.removeprefix("planner.throughput."),
        )
    )


def _rates(time: TimePrediction) -> str:
    mfu = "" if time.mfu is None else f", model FLOP utilisation {percent(float(time.mfu))}"
    tokens = f"{rate(time.tokens_per_s)} real tokens/s"
    return (
        f"{duration(time.step_s)} per step; {rate(time.samples_per_s)} samples/s, {tokens}, "
        f"{rate(time.padded_tokens_per_s)} padded tokens/s{mfu}."
    )


def _ms(seconds: float) -> str:
    return rate(seconds / MILLI_S)
