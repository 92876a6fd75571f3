"""GPU memory of a job: its program replayed, what lies outside of the allocator, the three levels of the
peak, and, where it does not fit, the first request that the card cannot serve.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace

from planner.allocator.slots import SlotEvents, replay_slots
from planner.arrays import is_zero, maximum, mean, minimum, where
from planner.domain.prediction import FailedRequest, MemoryPrediction, PhasePeak
from planner.domain.recipes.recipe import Number, Quantization
from planner.domain.term import (
    DRIVER_TERMS,
    LENGTH_CACHE,
    PHASES,
    STATE_TERMS,
    TERM_WORDS,
    Phase,
    Term,
    TermKind,
    TermName,
)
from planner.memory import outside
from planner.memory.replayed import Replayed, full_bytes, least_bytes, replayed, run_of
from planner.program.engines import runtime_of
from planner.program.job import Job

_ALL = frozenset(PHASES)
_LATER: frozenset[Phase] = frozenset({"forward_2", "loss_2", "backward_2", "eval", "save"})
REPLAY = "planner.allocator.slots:replay_slots"
"""Formula of the allocator's cache."""
_LENGTHS = "planner.memory.drawn_lengths:drawn_longest"


def predict_replayed(job: Job, *, minimum_too: bool = True, why: bool = False) -> MemoryPrediction:
    """Terms, phase peaks and the three levels for one GPU, of one job that is replayed.

    The minimum takes several replays: without ``minimum_too`` it is what is allocated, for readings of peaks.
    ``why``: the request that fails where the job does not fit.
    """
    done, limit = replayed(job), job.hardware.limit_bytes
    if not minimum_too:
        return prediction_of(job, done, done.allocated_bytes)
    beside = _beside(job)
    # A fit asks with many values of what lies beside at once: then the card's own limit is not looked at.
    room = max(int(limit - beside), 0) if limit is not None and isinstance(beside, int | float) else None
    made = prediction_of(job, done, least_bytes(job, room))
    if limit is None or room is None:
        return made
    if made.must_have_bytes > limit:
        return replace(made, failed=failed_request(job, room)) if why else made
    return made if done.length_cache_bytes or made.uncapped_driver_bytes <= limit else _full(job, made, room)


def _full(job: Job, made: MemoryPrediction, room: int) -> MemoryPrediction:
    """The same with what a card that fills shows: what is reserved before cached blocks are given back.

    Batches of natural lengths fill it bit by bit, so they come near to the limit.
    """
    reserved = minimum(full_bytes(job, room) + outside.outlier_weight_bytes(job), made.reserved_peak_bytes)
    lower = made.reserved_peak_bytes - maximum(reserved, made.allocated_peak_bytes)
    return replace(
        made,
        reserved_peak_bytes=made.reserved_peak_bytes - lower,
        driver_peak_bytes=made.driver_peak_bytes - lower,
    )


def _beside(job: Job) -> Number:
    """What a job must have beside what the program allocates."""
    outer = outside.driver_terms(job)
    return _sum(outer, DRIVER_TERMS) - _sum(outer, _PAGED) + outside.outlier_weight_bytes(job)


def prediction_of(job: Job, done: Replayed, least: Number) -> MemoryPrediction:
    """Terms, phase peaks and the three levels for one GPU,
    of what its allocator did and the ``least`` that it needs.
    """
    outer = outside.driver_terms(job)
    around = _sum(outer, DRIVER_TERMS)
    limit = job.hardware.limit_bytes
    more, extra = outside.outlier_terms(job), outside.outlier_weight_bytes(job)
    allocated = {each.phase: each.allocated_bytes + _in_phase(more, each.phase) for each in done.phases}
    allocated_peak = maximum(*allocated.values())
    slack = done.reserved_bytes + extra - allocated_peak
    piled = done.length_cache_bytes
    uncapped = allocated_peak + slack + piled + around
    must_have = least + _beside(job)
    # A job that fits is capped by the card, because the allocator returns cached blocks;
    # one that does not is shown whole.
    driver = uncapped if limit is None else where(must_have > limit, uncapped, minimum(uncapped, limit))
    limiting = max(allocated, key=lambda phase: mean(allocated[phase] + _in_phase(outer, phase)))
    return MemoryPrediction(
        # A phase that limits comes again in each step, and then meets what shorter batches left.
        terms=(*_terms(job, done), *more, *_slack_terms(slack, piled, _LATER | {limiting}), *outer),
        phases=tuple(_phase_peaks(done, outer, more)),
        limiting_phase=limiting,
        allocated_peak_bytes=allocated_peak,
        reserved_peak_bytes=minimum(allocated_peak + slack + piled, maximum(allocated_peak, driver - around)),
        driver_peak_bytes=driver,
        uncapped_driver_bytes=uncapped,
        must_have_bytes=must_have,
        state_bytes=done.state_bytes,
        limit_bytes=limit,
        order_spread_bytes=done.order_spread_bytes,
    )


_PAGED: frozenset[str] = frozenset({"paged_optimizer_states"})


_OF_ENGINES: frozenset[TermName] = frozenset({"master_weights", "gradient_buckets", "gathered_parameters"})
# Where the operators that allocate a term are written down.
_WRITTEN: dict[TermName, str] = {
    "weights": "planner.program.load:load",
    "quantization_constants": "planner.program.load:load",
    "adapters": "planner.program.load:load",
    "autocast_copies": "planner.program.ops.casts:weight_copy",
    "gradients": "planner.program.ops.autograd:run_backward",
    "optimizer_states": "planner.program.update.optimizer:optimizer_step",
    "optimizer_temporaries": "planner.program.update.optimizer:optimizer_step",
    "saved_activations": "planner.program.layers.layer:layer",
    "block_recompute": "planner.program.layers.layer:layer",
    "logits_and_loss": "planner.program.head.ends:head",
    "kv_cache": "planner.program.head.generation:cached",
    "vllm_awake": "planner.program.head.vllm:wake",
    "other_temporaries": "planner.program.step:step_of",
}
_EXPANDED: dict[Quantization, str] = {
    "nf4": "planner.program.weights.four_bit:expanded",
    "int8": "planner.program.weights.int8:linear_int8",
    "gptq-int4": "planner.program.weights.gptq:linear_gptq",
    "gptq-int8": "planner.program.weights.gptq:linear_gptq",
    "awq-int4": "planner.program.weights.awq:linear_awq",
    "aqlm": "planner.program.weights.aqlm:linear_aqlm",
    "fp8": "planner.program.weights.fine_grained:linear_fine_grained",
}


def _slack_terms(slack: Number, piled: Number, piled_in: frozenset[Phase]) -> tuple[Term, ...]:
    named = (("caching allocator", slack, _ALL, REPLAY), (LENGTH_CACHE, piled, piled_in, _LENGTHS))
    return tuple(
        Term("allocator_slack", label, n_bytes, "transient", phases, written)
        for label, n_bytes, phases, written in named
        if not is_zero(n_bytes)
    )


def _terms(job: Job, done: Replayed) -> tuple[Term, ...]:
    """What is allocated at the fullest moment of each phase; amounts that several phases share are one term.

    A state stands as the last phase has it.
    """
    found: dict[tuple[TermName, Number], set[Phase]] = {}
    for each in done.phases:
        for known in each.terms.items():
            found.setdefault(known, set()).add(each.phase)
    standing = {name: n_bytes for each in done.phases for name, n_bytes in each.terms.items()}
    return tuple(
        Term(
            name,
            TERM_WORDS[name],
            n_bytes,
            _kind(job, name, n_bytes == standing[name]),
            frozenset(phases),
            _written(job, name),
        )
        for (name, n_bytes), phases in found.items()
    )


def _written(job: Job, name: TermName) -> str:
    """The function, or the class of an engine, that writes the operators of a term down."""
    if name == "dequantization":
        return _EXPANDED.get(job.recipe.numerics.quantization, _EXPANDED["nf4"])
    engine = runtime_of(job)
    return f"{engine.__module__}:{engine.__qualname__}" if name in _OF_ENGINES else _WRITTEN[name]


def _kind(job: Job, name: TermName, is_whole: bool) -> TermKind:
    """States stand once they are made; all else comes and goes.
    A state that is being made counts as coming and going.
    """
    if name not in STATE_TERMS or not is_whole:
        return "transient"
    shards = job.optimizer_shards if name in ("master_weights", "optimizer_states") else job.weight_shards
    return "replicated" if isinstance(shards, int) and shards == 1 else "sharded"


def _phase_peaks(done: Replayed, outer: tuple[Term, ...], more: tuple[Term, ...]) -> Iterable[PhasePeak]:
    """The three levels of each phase.  What one phase reserved stays so until the cache is emptied."""
    for each in done.phases:
        uncounted = _in_phase(more, each.phase)
        reserved = each.reserved_bytes + uncounted
        yield PhasePeak(
            each.phase, each.allocated_bytes + uncounted, reserved, reserved + _in_phase(outer, each.phase)
        )


def _sum(terms: Iterable[Term], names: frozenset[str]) -> Number:
    """Most bytes of the terms ``names`` in one phase."""
    chosen = [term for term in terms if term.name in names]
    return maximum(0, *(_in_phase(chosen, phase) for phase in PHASES))


def _in_phase(terms: Iterable[Term], phase: Phase) -> Number:
    total: Number = 0
    for term in terms:
        if phase in term.phases:
            total = total + term.n_bytes
    return total


def failed_request(job: Job, limit_bytes: int) -> FailedRequest | None:
    """What fails where the allocator may reserve ``limit_bytes``; ``None`` where the job ends."""
    run = run_of(job)
    stream, events = run.stream, run.events
    failure = replay_slots(events, limit_bytes).failure
    if failure is None:
        return None
    _, phase = stream.phases[bisect_right(events.begins, failure.event) - 1]
    part, module, op = stream.place(stream.events[failure.event])
    is_short = failure.allocated_bytes + failure.n_bytes > limit_bytes
    could_help = not is_short and not events.settings.expandable_segments
    return FailedRequest(
        phase,
        part,
        module,
        op,
        failure.n_bytes,
        failure.free_bytes,
        failure.free_blocks,
        failure.largest_free_bytes,
        limit_bytes - failure.reserved_bytes,
        failure.event,
        ends_expandable(events, limit_bytes) if could_help else None,
    )


def ends_expandable(events: SlotEvents, limit_bytes: int) -> bool:
    """Whether every request is served with expandable segments, which leave fewer holes between blocks."""
    settings = replace(events.settings, expandable_segments=True)
    return replay_slots(replace(events, settings=settings), limit_bytes).failure is None
