"""Bounds for people: never in the form of a prediction."""

from __future__ import annotations

from planner.domain.recipes.job_line import short_job_line
from planner.domain.term import in_words
from planner.report.bounds.bounded import Bounded
from planner.report.prediction.verdict import VERDICTS
from planner.report.render.layout import Commands, Note, Section
from planner.report.render.numbers import gib

_FAMILIES = {"dense": "dense", "mixture": "mixture-of-experts", "recurrent": "recurrent"}


def headline(bounded: Bounded) -> Note:
    """``UNCERTAIN: architecture 'foo' is not modelled: bounds only, between 7.1 and 11.8 of 23.5 GiB``."""
    word, tone = VERDICTS[bounded.verdict]
    bounds = bounded.bounds
    of = "" if bounds.limit_bytes is None else f" of {gib(bounds.limit_bytes)}"
    between = f"between {gib(bounds.low_bytes)} and {gib(bounds.high_bytes)}{of} GiB per GPU"
    return Note(
        f"{word}: architecture '{bounded.architecture}' is not modelled: bounds only, {between}",
        tone,
    )


def bounds_sections(bounded: Bounded) -> tuple[Section, ...]:
    """The ends, what they are made of, and how to settle what is left."""
    bounds, within = bounded.bounds, bounded.bounds.range
    terms = ", ".join(f"{in_words(name)} {gib(n_bytes)}" for name, n_bytes in bounds.certain.items())
    count = f"{bounded.scenario.model.param_count:,} parameters, counted on its modules"
    is_open = bounded.verdict == "uncertain"
    notes = [
        headline(bounded),
        Note(f"Certain, in GiB: {terms}, CUDA context and NCCL {gib(bounds.outside_bytes)} ({count})."),
        Note(
            f"The rest is a range: {within.n} known {_FAMILIES[within.family]} architectures need "
            f"{within.low:g} to {within.high:g} times what a plain decoder of their sizes does "
            f"({within.lowest}, {within.highest})."
        ),
        *(() if within.decides else (Note("Too few are known: only what is certain decides."),)),
        Note(short_job_line(bounded.scenario), "dim"),
        Note("No step time and no host RAM.", "dim"),
        *(Note(f"Warning: {text}", "warn") for text in bounded.scenario.warnings),
        Note(f"The dry run of its own modules {'settles it' if is_open else 'says more'}:"),
    ]
    return (Section("", (*notes, Commands((bounded.settle,)))),)
