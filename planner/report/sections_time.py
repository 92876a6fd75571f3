"""Sections about time: the parts of a step, the rates that follow, the whole run and its cost."""

from __future__ import annotations

from collections.abc import Iterator

from planner.domain.prediction import Prediction, TimePrediction
from planner.domain.term import TimeTerm
from planner.report.intervals import step_interval
from planner.report.layout import Column, Grid, Note, Row, Section
from planner.report.numbers import duration, duration_range, percent, plain_number, rate
from planner.report.subject import Subject
from planner.units import MILLI_S

_COLUMNS = (
    Column("part"),
    Column("ms", "right"),
    Column("share", "right"),
    Column("overlapped ms", "right"),
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
    notes = (Note(f"{interval} of the step."),) if interval else ()
    return Section("Time of one optimizer step", (Grid(_COLUMNS, tuple(rows)), Note(_rates(time)), *notes))


def step_note(prediction: Prediction) -> Note:
    """Time of a step with its interval, and the rates, in a line."""
    time = prediction.time
    if time is None:
        return Note("Step time is not predicted: the rates of this card are not known.", "warn")
    interval = step_interval(prediction)
    when = ", with room" if prediction.verdict == "does_not_fit" else ""
    return Note(f"Step{when}: {duration(time.step_s)}{f' ({interval})' if interval else ''}; {rate(time.tokens_per_s)} tokens/s")


def run_section(subject: Subject) -> Section:
    """Run time and cost, where the user says how many samples there are."""
    notes, run, n_gpus = tuple(run_notes(subject)), subject.scenario.run, subject.scenario.hardware.world_size
    if notes and run.eval_samples is not None:
        notes += (Note(f"With {run.eval_samples:,} samples evaluated after each epoch."),)
    if notes and run.usd_per_gpu_hour is not None:
        notes += (Note(f"{n_gpus} GPU{'s' if n_gpus > 1 else ''} at {run.usd_per_gpu_hour:g} USD an hour each."),)
    return Section("Whole run", notes)


def asks_for_run(subject: Subject) -> bool:
    """Whether the user says how many samples there are, and times are predicted."""
    return subject.prediction.time is not None and subject.prediction.time.run_time_s is not None


def run_notes(subject: Subject) -> Iterator[Note]:
    """Run time and cost, and what both are at another length of samples; nothing where they are not asked for."""
    time, run, sure = subject.prediction.time, subject.scenario.run, subject.prediction.uncertainty
    if time is None or run.n_samples is None or time.run_time_s is None:
        return
    run_s, other = float(time.run_time_s), subject.at_length
    epochs = "" if run.epochs == 1 else f" x {plain_number(run.epochs)} epochs"
    text = f"Run: {run.n_samples:,}{' full' if other else ''} samples{epochs}: {duration(run_s)}"
    if sure is not None and sure.step is not None:
        low, high = (run_s * float(edge) / float(time.step_s) for edge in (sure.step.low, sure.step.high))
        text += f" ({duration_range(low, high)})"
    yield Note(f"{text}{', cost: add --price' if time.cost_usd is None else _usd(float(time.cost_usd))}")
    if other is not None:
        usd = "" if other.cost_usd is None else _usd(other.cost_usd)
        yield Note(f"With --tokens-per-sample {other.tokens_per_sample}, for example: {duration(other.run_time_s)}{usd}")


def _usd(amount: float) -> str:
    return f", {amount:,.2f} USD"


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
