"""The table of contents of GPU memory: every term with the phases it lives in, and the peak as a maximum over phases."""

from __future__ import annotations

from planner.arrays import is_zero, maximum, minimum, where
from planner.domain.prediction import MemoryPrediction, PhasePeak
from planner.domain.recipe import Number
from planner.domain.term import ALLOCATED_TERMS, DRIVER_TERMS, PHASES, Phase, Term
from planner.memory import optimizer, runtime, sharding
from planner.memory.job import Job
from planner.memory.phases import ALL_PHASES, make_term
from planner.memory.terms import driver_terms, tensor_terms


def predict_memory(job: Job, *, by_phase: bool = True) -> MemoryPrediction:
    """Terms, phase peaks and the three levels for one GPU.

    Without ``by_phase`` the list of phase peaks stays empty: on a grid it would take as long as all the rest.
    """
    terms = tensor_terms(job)
    allocated = _sum_by_phase(terms, ALLOCATED_TERMS)
    allocated_peak = maximum(*allocated.values())
    slack = _reserved_peak(job, terms, allocated) - allocated_peak
    fragmentation = runtime.fragmentation_bytes(job, maximum(allocated_peak - _resident_bytes(terms), 0))
    slack_term = make_term("allocator_slack", "allocator slack", slack, ALL_PHASES, "runtime:allocator_slack_bytes", "transient")
    outer = driver_terms(job)
    outside_by_phase = _sum_by_phase(outer, DRIVER_TERMS)
    outside = maximum(*outside_by_phase.values())
    uncapped = allocated_peak + slack + outside
    limit = _limit_bytes(job)
    must_have = allocated_peak + fragmentation + outside - optimizer.paged_state_bytes(job)
    # A job that fits is capped by the card, because the allocator returns cached blocks; one that does not fit is shown whole.
    driver_peak = uncapped if limit is None else where(must_have > limit, uncapped, minimum(uncapped, limit))
    return MemoryPrediction(
        terms=(*terms, slack_term, *outer),
        phases=_phase_peaks(allocated, (allocated_peak + slack) / allocated_peak, outside_by_phase) if by_phase else (),
        limiting_phase=_limiting_phase(allocated, outside_by_phase),
        allocated_peak_bytes=allocated_peak,
        reserved_peak_bytes=minimum(allocated_peak + slack, maximum(allocated_peak, driver_peak - outside)),
        driver_peak_bytes=driver_peak,
        uncapped_driver_bytes=uncapped,
        must_have_bytes=must_have,
        limit_bytes=limit,
    )


def _phase_peaks(allocated: dict[Phase, Number], reserved_ratio: Number, outside: dict[Phase, Number]) -> tuple[PhasePeak, ...]:
    """The three levels of each phase.  What one phase reserved stays reserved, so that level never falls from phase to phase."""
    peaks = []
    reserved: Number = 0
    for phase, amount in allocated.items():
        reserved = maximum(reserved, amount * reserved_ratio)
        peaks.append(PhasePeak(phase, amount, reserved, reserved + outside[phase]))
    return tuple(peaks)


def _reserved_peak(job: Job, terms: tuple[Term, ...], allocated: dict[Phase, Number]) -> Number:
    """Most bytes that the allocator reserves on an unlimited card.

    Pools are per stream: what ZeRO-3 gathers and reduces on its own streams cannot serve the main one, so those pools add up
    with the main pool's peak although they are not full at the same time.  In the loss and in eager attention, blocks of two
    sizes follow each other, and the small ones are stranded.
    """
    side: Number = 0
    main = allocated
    if job.recipe.sharding == "zero3":
        side = sharding.gathered_parameter_bytes(job)
        gathered = _sum_by_phase(terms, frozenset({"gathered_parameters"}))
        main = {phase: amount - gathered[phase] for phase, amount in allocated.items()}
    loss, scores = runtime.stranded_logits_bytes(job), runtime.stranded_scores_bytes(job)
    stranded: dict[Phase, Number] = {"loss": loss, "loss_2": loss, "backward": scores, "backward_2": scores}
    pools = maximum(*(amount + stranded.get(phase, 0) for phase, amount in main.items())) + side
    transient = pools - _resident_bytes(terms)
    passes = maximum(*_sum_by_phase(terms, _PASS_TERMS).values())
    in_step = runtime.reserved_in_step_bytes(job, allocated["optimizer_step"] + side, passes)
    return maximum(pools, in_step, *allocated.values()) + runtime.allocator_slack_bytes(job, maximum(transient, 0))


# What the passes themselves hold: these blocks are cached when the step begins.
_PASS_TERMS: frozenset[str] = frozenset({"saved_activations", "block_recompute", "logits_and_loss"})


def _limit_bytes(job: Job) -> int | None:
    hardware = job.hardware
    visible = hardware.gpu.visible_memory_bytes
    return None if visible is None else visible - hardware.gpu_reserved_bytes


def _limiting_phase(allocated: dict[Phase, Number], outside: dict[Phase, Number]) -> Phase:
    """The phase with the highest peak on the device; for arrays the one that is highest on average."""
    try:
        return max(allocated, key=lambda phase: float(allocated[phase] + outside[phase]))
    except TypeError:
        import numpy as np

        return max(allocated, key=lambda phase: float(np.mean(allocated[phase] + outside[phase])))


def _sum_by_phase(terms: tuple[Term, ...], names: frozenset[str]) -> dict[Phase, Number]:
    """Bytes alive in each phase, over the terms called ``names``."""
    totals: dict[Phase, Number] = dict.fromkeys(PHASES, 0)
    for term in terms:
        if term.name in names and not is_zero(term.n_bytes):
            for phase in term.phases:
                totals[phase] = totals[phase] + term.n_bytes
    return totals


def _resident_bytes(terms: tuple[Term, ...]) -> Number:
    """Bytes that never leave: they fill their segments once and do not fragment."""
    return sum(term.n_bytes for term in terms if term.kind != "transient")
