"""The table of contents of GPU memory: every term with the phases it lives in, and the peak as a maximum over phases."""

from __future__ import annotations

from planner.arrays import is_zero, maximum, mean, minimum, where
from planner.domain.prediction import MemoryPrediction, PhasePeak
from planner.domain.recipe import Number
from planner.domain.term import ALLOCATED_TERMS, DRIVER_TERMS, LENGTH_CACHE, PHASES, Phase, Term
from planner.memory import cache, lengths, optimizer, pools, runtime, score_cache
from planner.memory.parts import Parts, parts_of
from planner.memory.phases import ALL_PHASES, BACKWARD, LATER, make_term
from planner.memory.terms import GATHERED, TIED_TABLE, driver_terms, tensor_terms
from planner.program.job import Job


def predict_memory(job: Job, *, by_phase: bool = True) -> MemoryPrediction:
    """Terms, phase peaks and the three levels for one GPU.

    Without ``by_phase`` the list of phase peaks stays empty: on a grid it would take as long as all the rest.
    """
    parts = parts_of(job)
    terms = tensor_terms(job, parts)
    allocated = _sum_by_phase(terms, ALLOCATED_TERMS)
    allocated_peak = maximum(*allocated.values())
    fragments = {phase: runtime.fragmentation_bytes(job, n_bytes) for phase, n_bytes in _transient_by_phase(terms).items()}
    idle = cache.idle_by_phase(job, terms, parts)
    cached_too = {phase: n_bytes + idle[phase] + fragments[phase] for phase, n_bytes in allocated.items()}
    reserved = _reserved_by_phase(job, terms, parts, allocated, cached_too)
    slack = maximum(*reserved.values()) - allocated_peak
    piled = _length_cache(job, terms)
    with_lengths = {phase: n_bytes + (piled.n_bytes if phase in LATER else 0) for phase, n_bytes in reserved.items()}
    cached = maximum(*with_lengths.values()) - allocated_peak - slack
    slack_term = make_term("allocator_slack", "caching allocator", slack, ALL_PHASES, "cache:idle_by_phase", "transient")
    length_term = make_term("allocator_slack", LENGTH_CACHE, cached, LATER, "lengths:length_cache", "transient")
    outer = driver_terms(job)
    outside_by_phase = _sum_by_phase(outer, DRIVER_TERMS)
    outside = maximum(*outside_by_phase.values())
    uncapped = allocated_peak + slack + cached + outside
    limit = _limit_bytes(job)
    must_have = _held_bytes(job, allocated, fragments) + outside - optimizer.paged_state_bytes(job)
    # A job that fits is capped by the card, because the allocator returns cached blocks; one that does not fit is shown whole.
    driver_peak = uncapped if limit is None else where(must_have > limit, uncapped, minimum(uncapped, limit))
    return MemoryPrediction(
        terms=(*terms, *slack_term, *length_term, *outer),
        phases=_phase_peaks(allocated, with_lengths, outside_by_phase) if by_phase else (),
        limiting_phase=_limiting_phase(allocated, outside_by_phase),
        allocated_peak_bytes=allocated_peak,
        reserved_peak_bytes=minimum(allocated_peak + slack + cached, maximum(allocated_peak, driver_peak - outside)),
        driver_peak_bytes=driver_peak,
        uncapped_driver_bytes=uncapped,
        must_have_bytes=must_have,
        limit_bytes=limit,
        order_spread_bytes=piled.spread_bytes,
    )


def _held_bytes(job: Job, allocated: dict[Phase, Number], fragments: dict[Phase, Number]) -> Number:
    """Most that is reserved at once and cannot be given back: what is alive, fragments, and spoiled blocks of scores."""
    spoiled = dict.fromkeys(BACKWARD, score_cache.spoiled_scores_bytes(job))
    return maximum(*(n_bytes + fragments[phase] + spoiled.get(phase, 0) for phase, n_bytes in allocated.items()))


def _phase_peaks(
    allocated: dict[Phase, Number], reserved: dict[Phase, Number], outside: dict[Phase, Number]
) -> tuple[PhasePeak, ...]:
    """The three levels of each phase.  What one phase reserved stays reserved, so that level never falls from phase to phase."""
    peaks = []
    so_far: Number = 0
    for phase, amount in allocated.items():
        so_far = maximum(so_far, reserved[phase])
        peaks.append(PhasePeak(phase, amount, so_far, so_far + outside[phase]))
    return tuple(peaks)


def _reserved_by_phase(
    job: Job, terms: tuple[Term, ...], parts: Parts, allocated: dict[Phase, Number], reserved: dict[Phase, Number]
) -> dict[Phase, Number]:
    """Most bytes that the allocator reserves for each phase on an unlimited card, if it came first.

    ``reserved``: what is allocated, what is cached and of no use at that moment (:func:`planner.memory.cache.idle_by_phase`), and
    fragments.
    Pools are per stream: what engines gather and reduce on streams of their own cannot serve the main one.  So those pools and
    the main pool's peak add up, although they are not full at the same time.
    """
    side: Number = 0
    if job.recipe.sharding.is_zero3:
        side = pools.gather_pool_bytes(job, parts.gathered)
        gathered = _sum_by_phase(tuple(term for term in terms if term.formula == GATHERED), ALLOCATED_TERMS)
        reserved = {phase: n_bytes - gathered[phase] + side for phase, n_bytes in reserved.items()}
    if job.regime.engine == "deepspeed":
        in_step = _reserved_in_step(job, terms, allocated["optimizer_step"] + side)
        reserved = reserved | {"optimizer_step": maximum(reserved["optimizer_step"], in_step)}
    pool, streams = pools.gradient_pool_bytes(job), runtime.side_stream_bytes(job)
    if not is_zero(pool):
        # What waits for a tied table's own gradient is whole, and on the main stream.
        pooled = tuple(term for term in terms if term.formula != TIED_TABLE)
        beside = pools.idle_gradient_pool_bytes(job, parts.activations, pool, _sum_by_phase(pooled, frozenset({"gradients"})))
        reserved = {phase: n_bytes + beside[phase] for phase, n_bytes in reserved.items()}
    return {phase: maximum(n_bytes, allocated[phase]) + streams for phase, n_bytes in reserved.items()}


def _reserved_in_step(job: Job, terms: tuple[Term, ...], step_bytes: Number) -> Number:
    """Most bytes that are reserved in DeepSpeed's first step, whose tensors take ``step_bytes``, fragments included."""
    # Where the engine left blocks of weights behind, the passes used those.
    flattened = cache.flattened_leftover_bytes(job)
    passes = maximum(*_sum_by_phase(terms, _PASS_TERMS).values()) - optimizer.initial_block_bytes(job)
    transient = _transient_by_phase(terms)["optimizer_step"]
    return runtime.reserved_in_step_bytes(job, step_bytes, maximum(passes, flattened)) + runtime.fragmentation_bytes(
        job, transient
    )


# What the passes themselves hold: these blocks are cached when the step begins.
_PASS_TERMS: frozenset[str] = frozenset({"saved_activations", "block_recompute", "logits_and_loss"})
_ACTIVATION_TERMS: frozenset[str] = frozenset({"saved_activations", "block_recompute"})


def _limit_bytes(job: Job) -> int | None:
    hardware = job.hardware
    visible = hardware.gpu.visible_memory_bytes
    if visible is None or not hardware.gpu.is_cuda:
        # On another device than CUDA's a limit would be compared with numbers that are not its own.
        return None
    # Others can hold all of a card, never more.
    return max(visible - hardware.gpu_reserved_bytes, 0)


def _limiting_phase(allocated: dict[Phase, Number], outside: dict[Phase, Number]) -> Phase:
    """The phase with the highest peak on the device; for arrays the one that is highest on average."""
    return max(allocated, key=lambda phase: mean(allocated[phase] + outside[phase]))


def _sum_by_phase(terms: tuple[Term, ...], names: frozenset[str]) -> dict[Phase, Number]:
    """Bytes alive in each phase, over the terms called ``names``."""
    totals: dict[Phase, Number] = dict.fromkeys(PHASES, 0)
    for term in terms:
        if term.name in names:
            for phase in term.phases:
                totals[phase] = totals[phase] + term.n_bytes
    return totals


def _length_cache(job: Job, terms: tuple[Term, ...]) -> lengths.LengthCache:
    in_forward = (term.n_bytes for term in terms if term.name in _ACTIVATION_TERMS and "forward" in term.phases)
    return lengths.length_cache(job, sum(in_forward))


def _transient_by_phase(terms: tuple[Term, ...]) -> dict[Phase, Number]:
    """Bytes that come and go, alive in each phase; the others fill their segments once and do not fragment."""
    return _sum_by_phase(tuple(term for term in terms if term.kind == "transient"), ALLOCATED_TERMS)
