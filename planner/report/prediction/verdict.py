"""The verdict in one line, and what stands beside it: one meaning for each number,
in every form of the report.

"Needs" is what decides: with less than that the job fails.  What nvidia-smi would show is more: with room to
spare the allocator keeps freed blocks cached, which it gives back when memory is short.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.domain.prediction import Prediction, Verdict
from planner.domain.recipes.sharding import DDP
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.calibration import lengths_are_unknown
from planner.report.prediction.intervals import level_interval
from planner.report.prediction.subject import Subject, rests_on_unknown_host
from planner.report.render.layout import Note, Tone
from planner.report.render.numbers import chance_text, gib, whole_percent

VERDICTS: dict[Verdict, tuple[str, Tone]] = {
    "fits": ("FITS", "good"),
    "does_not_fit": ("DOES NOT FIT", "bad"),
    "uncertain": ("UNCERTAIN", "warn"),
    "host_memory_short": ("HOST RAM TOO SMALL", "bad"),
    "no_verdict": ("NO VERDICT", "warn"),
}


def verdict_note(subject: Subject) -> Note:
    """``FITS: needs 6.23 of 23.52 GiB per GPU; chance to fit > 99 %``."""
    prediction, memory = subject.prediction, subject.prediction.memory
    word, tone = VERDICTS[prediction.verdict]
    if not subject.scenario.hardware.gpu.is_cuda:
        return Note(
            f"{word}: not a CUDA device; weights and states take {gib(memory.state_bytes)} GiB at least", tone
        )
    if prediction.verdict == "fits" and rests_on_unknown_host(subject.scenario, prediction):
        word, tone = f"FITS IF A NODE HAS {gib(prediction.host.required_per_node_bytes)} GiB OF RAM", "warn"
    need = f"needs {gib(memory.must_have_bytes)}"
    if memory.limit_bytes is None:
        return Note(f"{word}: {need} GiB per GPU of unknown size", tone)
    if prediction.verdict == "host_memory_short":
        host = prediction.host
        node = f"{gib(host.required_per_node_bytes)} of {gib(host.available_bytes or 0)} GiB"
        card = f"{gib(memory.must_have_bytes)} of {gib(memory.limit_bytes)} GiB"
        return Note(f"{word}: a node needs {node}; GPU {card}", tone)
    if not memory.limit_bytes:
        size = f"{need} GiB per GPU, nothing is left on the card"
    else:
        size = f"{need} of {gib(memory.limit_bytes)} GiB per GPU"
    return Note(f"{word}: {size}; {_chance(prediction)}", tone)


def _chance(prediction: Prediction) -> str:
    if prediction.if_shorter:
        return prediction.if_shorter
    if prediction.fits_probability is not None:
        return f"chance to fit {chance_text(prediction.fits_probability)}"
    return "chance to fit unknown" if prediction.uncertainty else "not calibrated, no interval"


def uses_text(subject: Subject) -> str:
    """What the driver shows with room to spare, and on this card where that is less."""
    prediction = subject.prediction
    memory, sure = prediction.memory, prediction.uncertainty
    uncapped = f"{gib(memory.uncapped_driver_bytes)} GiB"
    interval = ""
    if sure and (found := level_interval(prediction, "driver")):
        interval = f" ({whole_percent(sure.nominal)} interval {found})"
    if not subject.scenario.hardware.gpu.is_cuda:
        return f"On a CUDA card it would use {uncapped}{interval}."
    if memory.limit_bytes is not None and float(memory.must_have_bytes) > memory.limit_bytes:
        return f"With enough memory: {uncapped} in nvidia-smi{interval}."
    if float(memory.uncapped_driver_bytes) > float(memory.driver_peak_bytes):
        shown = f"{gib(memory.driver_peak_bytes)} GiB"
        return f"It fills the card: nvidia-smi would show {shown}{interval}; with more memory {uncapped}."
    return f"nvidia-smi would show {uncapped}{interval}."


def failure_notes(subject: Subject) -> Iterator[Note]:
    """Where a job that does not fit stops, and that each GPU holds all of a model
    where nobody said how it is divided.
    """
    prediction, scenario = subject.prediction, subject.scenario
    memory, sharding = prediction.memory, scenario.assumption("sharding")
    if prediction.verdict != "does_not_fit":
        return
    if memory.failed is not None and memory.limit_bytes:
        yield Note(memory.failed.text.replace("stops", "Stops", 1))
    is_assumed = sharding is not None and sharding.is_assumed and scenario.recipe.sharding == DDP
    if not is_assumed or float(memory.state_bytes) <= (memory.limit_bytes or 0):
        return
    divided = [lever for lever in subject.levers or () if lever.only_divides_weights]
    best = max(divided, key=lambda lever: lever.saves_bytes, default=None)
    with_it = "" if best is None else gib(float(memory.must_have_bytes) - best.saves_bytes)
    rest = "" if best is None else f"; {best.flags_text} needs {with_it} GiB"
    yield Note(f"Each GPU holds the whole model (ddp assumed){rest}.")


def doubts(subject: Subject) -> tuple[str, ...]:
    """What to know before the verdict is trusted: the job's warnings, and why its interval is wide."""
    return (*subject.warnings, *_wide_intervals(subject.scenario, subject.prediction))


def _wide_intervals(scenario: Scenario, prediction: Prediction) -> tuple[str, ...]:
    sure = prediction.uncertainty
    if sure is None:
        return ()
    found = []
    if sure.extrapolates:
        found.append(f"No measured run is of {' or of '.join(sure.extrapolates)}, so intervals are wider.")
    if lengths_are_unknown(scenario):
        found.append("Sample lengths are not given: intervals are wide (--tokens-per-sample).")
    return tuple(found)
