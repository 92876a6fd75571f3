"""The answer: terms, peaks at three levels, host RAM, time, and a verdict with what limits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.domain.recipes.recipe import Number
from planner.domain.term import PHASE_WORDS, HostTerm, Phase, Term, TimeTerm
from planner.domain.uncertainty.interval import Interval, SpreadOf
from planner.units import format_bytes

MemoryLevel = Literal["allocated", "reserved", "driver"]
Verdict = Literal["fits", "does_not_fit", "uncertain", "host_memory_short", "no_verdict"]


@dataclass(frozen=True, slots=True)
class PhasePeak:
    """Most bytes alive on one GPU in one phase, at the three levels."""

    phase: Phase
    allocated_bytes: Number
    reserved_bytes: Number
    driver_bytes: Number


_PARTS_LIKE_PHASES = frozenset({"load", "optimizer"})


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """The first allocation that the card cannot serve: in which phase, part of the model,
    module and operator.

    ``n_bytes`` were asked for while ``free_bytes`` were cached in ``free_blocks`` pieces, the largest of them
    ``largest_free_bytes``, and the allocator might reserve ``unreserved_bytes`` more.  ``event``: its number
    in the program.  ``fits_expandable``: whether the whole job ends with expandable segments; ``None`` where
    they cannot help, because what is allocated and the request are too much together, or the job has them.
    """

    phase: Phase
    part: str
    module: str
    op: str
    n_bytes: int
    free_bytes: int
    free_blocks: int
    largest_free_bytes: int
    unreserved_bytes: int
    event: int
    fits_expandable: bool | None

    @property
    def where(self) -> str:
        """Part of the model and module; a part that only repeats the phase is left out."""
        part = "" if self.module and self.part in _PARTS_LIKE_PHASES else self.part
        return ", ".join(name for name in (part, self.module) if name)

    @property
    def text(self) -> str:
        """``stops at layer 16, down_proj (forward): 86.0 MiB asked, 76.0 MiB free``."""
        at = "" if self.where in _PARTS_LIKE_PHASES else f" at {self.where}"
        phase = PHASE_WORDS[self.phase].removesuffix(", 1st micro-batch")
        asked, free = format_bytes(self.n_bytes), format_bytes(self.unreserved_bytes)
        # A small request takes a segment of 2 or 20 MiB from the driver.
        more = ", too little for the segment it needs" if self.unreserved_bytes >= self.n_bytes else ""
        return f"stops{at} ({phase}): {asked} asked, {free} free{more}"


@dataclass(frozen=True, slots=True)
class MemoryPrediction:
    """GPU memory of one device.

    ``limit_bytes`` is what the job may use: CUDA-visible memory less what is already taken (``None``:
    unknown).  Peaks are maxima over phases.  ``reserved_peak_bytes`` and ``driver_peak_bytes`` are capped at
    the card when the allocator would have returned its cache rather than failed; ``uncapped_driver_bytes`` is
    what an unlimited card would show.  ``order_spread_bytes``: one standard deviation of the cache that
    natural lengths pile up, over orders of the samples.  ``state_bytes``: weights, adapters and optimizer
    states that stay on one GPU: less than that no device needs.  ``failed``: what the card cannot serve, of a
    job that was replayed and does not fit.
    """

    terms: tuple[Term, ...]
    phases: tuple[PhasePeak, ...]
    limiting_phase: Phase
    allocated_peak_bytes: Number
    reserved_peak_bytes: Number
    driver_peak_bytes: Number
    uncapped_driver_bytes: Number
    must_have_bytes: Number
    state_bytes: Number
    limit_bytes: int | None
    order_spread_bytes: Number = 0
    failed: FailedRequest | None = None


@dataclass(frozen=True, slots=True)
class HostPrediction:
    """Host RAM.

    ``per_process_bytes`` and ``per_node_bytes`` are the peaks of a run from loading to saving; ``setup_*``
    the most while it is loaded and set up, ``steps_*`` what is there while steps run.
    ``required_per_node_bytes`` leaves out what is reclaimed under pressure.  ``available_bytes`` is ``None``
    when the memory of the host is unknown: printed, not judged.
    """

    terms: tuple[HostTerm, ...]
    per_process_bytes: Number
    per_node_bytes: Number
    setup_per_process_bytes: Number
    setup_per_node_bytes: Number
    steps_per_process_bytes: Number
    steps_per_node_bytes: Number
    required_per_node_bytes: Number
    available_bytes: int | None

    @property
    def reclaimable_per_node_bytes(self) -> float:
        """What a node uses beyond what is judged: mapped files, given back under pressure."""
        return max(0.0, float(self.per_node_bytes) - float(self.required_per_node_bytes))


@dataclass(frozen=True, slots=True)
class TimePrediction:
    """Time of one optimizer step and what follows from it.  Rates are of the whole job.

    ``mfu`` is model FLOP utilisation: FLOP that the method needs without recomputation,
    over the dense peak rate.
    """

    terms: tuple[TimeTerm, ...]
    step_s: Number
    samples_per_s: Number
    tokens_per_s: Number
    padded_tokens_per_s: Number
    model_flop_per_step: Number
    mfu: Number | None
    run_time_s: Number | None
    cost_usd: Number | None


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """How far measurements on unseen sources lie from predictions like this one.

    ``memory``: intervals of the three levels, in bytes.  ``step``: of the step time, in seconds.  ``host``:
    of host RAM per process, in bytes.  ``None`` where no calibrated record had such a reading.  ``coverage``:
    share of held-out readings that lay inside such intervals.  ``basis``: what they rest on;
    ``extrapolates``: what of the job no calibrated record had.
    """

    nominal: float
    memory: tuple[tuple[MemoryLevel, Interval], ...]
    step: Interval | None
    host: Interval | None
    coverage: tuple[tuple[SpreadOf, float], ...]
    basis: str
    extrapolates: tuple[str, ...]

    @property
    def driver(self) -> Interval | None:
        """The interval of the driver's peak, in bytes."""
        return dict(self.memory).get("driver")


@dataclass(frozen=True, slots=True)
class Prediction:
    """Everything that ``plan`` says about one scenario.

    ``calibration`` is the name of the fitted coefficients or ``"uncalibrated"``; without one there is no
    interval and ``fits_probability`` is ``None``.  ``time`` is ``None`` where something is not known that
    decides it; ``untimed`` says what.  ``if_shorter``: which samples would fit, where these do not.
    """

    memory: MemoryPrediction
    host: HostPrediction
    time: TimePrediction | None
    verdict: Verdict
    reason: str
    fits_probability: float | None
    calibration: str
    warnings: tuple[str, ...] = ()
    uncertainty: Uncertainty | None = None
    untimed: str = ""
    if_shorter: str = ""
