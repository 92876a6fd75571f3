"""The program of one job, replayed through the model of the caching allocator:
what is allocated and reserved, by phase.

Source of the allocator's rules: :mod:`planner.allocator.caching_allocator`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, pstdev

from planner.allocator.columns import held_at, passing
from planner.allocator.settings import parse_settings
from planner.allocator.slots import (
    SlotEvents,
    SlotReplay,
    for_replay,
    least_limit,
    replay_parts,
    replay_slots,
)
from planner.arrays import maximum
from planner.domain.recipes.recipe import Number
from planner.domain.scenario import Scenario
from planner.domain.term import PHASES, STATE_TERMS, TERM_NAMES, Phase, TermName
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.drawn_lengths import N_ORDERS, drawn_longest
from planner.memory.structures import asks_room, program_of
from planner.program.job import Job, job_of
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.request_stream import RequestStream
from planner.units import MIB

# The minimum is searched to a 128th of what is allocated, and no finer than this.
_LEAST_STEP_BYTES = 64 * MIB
_STEPS = 128
_LOADING = ("load", "adapters")


@dataclass(frozen=True, slots=True)
class PhaseBytes:
    """Most bytes allocated and reserved in one phase; ``terms``: what they are at that moment,
    in blocks of the allocator.
    """

    phase: Phase
    allocated_bytes: Number
    reserved_bytes: Number
    terms: Mapping[TermName, Number]


@dataclass(frozen=True, slots=True)
class Replayed:
    """``phases``: on a card without a limit, every batch as long as the cap.

    ``state_bytes``: weights, adapters and optimizer states that are there when the step ends.
    ``length_cache_bytes``: what is reserved above that where batches have drawn lengths, the mean of several
    orders of the samples, and ``order_spread_bytes`` its standard deviation over them.  ``n_single``: as
    :attr:`RequestStream.n_single`.
    """

    phases: tuple[PhaseBytes, ...]
    state_bytes: Number
    length_cache_bytes: Number
    order_spread_bytes: Number
    n_single: int = 0

    @property
    def allocated_bytes(self) -> Number:
        """Most bytes allocated."""
        return maximum(*(each.allocated_bytes for each in self.phases))

    @property
    def reserved_bytes(self) -> Number:
        """Most bytes reserved."""
        return maximum(*(each.reserved_bytes for each in self.phases))


@dataclass(frozen=True, slots=True)
class ReplayedProgram:
    """The program of one job, its requests in bytes, and what they do on a card without a limit."""

    stream: RequestStream
    events: SlotEvents
    done: SlotReplay


def run_of(job: Job) -> ReplayedProgram:
    """The program of ``job``, replayed on a card without a limit."""
    return _run(without_card(job.scenario))


def replayed(job: Job) -> Replayed:
    """Replay the program of ``job`` on a card without a limit."""
    return _replayed(without_card(job.scenario))


def least_bytes(job: Job, limit_bytes: int | None = None) -> int:
    """The smallest limit under which the program of ``job`` still ends.

    ``limit_bytes``: what the allocator may reserve on the job's own card;
    the minimum is on the right side of it.
    """
    done = replayed(job)
    near = limit_bytes is not None and done.allocated_bytes <= limit_bytes < done.reserved_bytes
    return _least_bytes(without_card(job.scenario), limit_bytes if near else None)


def full_bytes(job: Job, limit_bytes: int) -> int:
    """Most bytes that the program of ``job`` reserves on a card that lets the allocator reserve
    ``limit_bytes``, less than it would reserve without a limit.

    A request for which there is no room has all cached blocks given back first, so the fullest moment is
    before one of them: how far below the limit depends on their sizes.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp, ``release_cached_blocks``.
    """
    return _full_bytes(without_card(job.scenario), limit_bytes)


def without_card(scenario: Scenario) -> Scenario:
    """The scenario without what changes no request, so that equal programs are replayed once."""
    hardware, recipe = scenario.hardware, scenario.recipe
    if recipe.sharding.engine == "native" and not asks_room(recipe, scenario.stack):
        hardware = replace(
            hardware, gpu_reserved_bytes=0, gpu=replace(hardware.gpu, visible_memory_bytes=None)
        )
    return replace(scenario, hardware=hardware, assumptions=(), warnings=())


# One of a large model takes some ten megabytes.
@lru_cache(maxsize=4)
def _run(scenario: Scenario) -> ReplayedProgram:
    # No coefficient moves a request.
    job = job_of(scenario, Coefficients())
    several = job.recipe.sharding.is_zero12 and job.hardware.world_size > 1
    return max((_of_process(job, each) for each in ((0, -1) if several else (-1,))), key=_needs_bytes)


def _of_process(job: Job, process: int) -> ReplayedProgram:
    job = replace(job, process=process)
    stream = program_of(job)
    events = slot_events(stream, job)
    return ReplayedProgram(stream, events, replay_slots(events))


def _needs_bytes(run: ReplayedProgram) -> tuple[int, ...]:
    """Most bytes reserved, then those of the steps alone, and most bytes allocated in them.

    The last process keeps the gradients that come first, when most activations are still there; the first
    has the token table, whose gradient is widened for its norm.
    """
    phases = zip(run.stream.phases, run.done.phases, strict=True)
    steps = [each for (_, phase), each in phases if phase not in _LOADING]
    reserved, allocated = (each.reserved_bytes for each in steps), (each.allocated_bytes for each in steps)
    return run.done.reserved_bytes, max(reserved), max(allocated)


@lru_cache(maxsize=4096)
def _replayed(scenario: Scenario) -> Replayed:
    job, run = job_of(scenario, Coefficients()), _run(scenario)
    stream, events, done = run.stream, run.events, run.done
    most = [_most_reserved(job, stream, events, order) for order in range(N_ORDERS)]
    piled = [max(each - done.reserved_bytes, 0) for each in most]
    phases, states = tuple(_by_phase(stream, events, done)), states_at_end(stream, events)
    return Replayed(phases, states, round(fmean(piled)), pstdev(piled), stream.n_single)


@lru_cache(maxsize=4096)
def _full_bytes(scenario: Scenario, limit_bytes: int) -> int:
    return replay_slots(_run(scenario).events, limit_bytes).reserved_bytes


@lru_cache(maxsize=4096)
def _least_bytes(scenario: Scenario, limit_bytes: int | None) -> int:
    run = _run(scenario)
    step_bytes = max(run.done.allocated_bytes // _STEPS, _LEAST_STEP_BYTES)
    return least_limit(run.events, run.done, step_bytes, limit_bytes)


def _values(job: Job) -> dict[Unit, float]:
    return {unit: float(count) for unit, count in unit_values(job).items()}


def slot_events(stream: RequestStream, job: Job) -> SlotEvents:
    """The requests of ``stream`` in bytes, with the events at which its phases begin."""
    streams = stream.streams if any(stream.streams) else array("B")
    begins = [begin for begin, _ in stream.phases]
    # A stack that empties the cache every few steps keeps nothing of the first step.
    updated = [i for i, (_, phase) in enumerate(stream.phases) if phase == "optimizer_step"]
    later = [] if job.stack.keeps_outgrown_blocks else [number + 1 for number in updated[:1]]
    if job.stack.empties_before_backward != "never":
        last = updated[0] if job.stack.empties_before_backward == "first" else len(begins)
        backward = (i for i, (_, phase) in enumerate(stream.phases[:last]) if phase.startswith("backward"))
        later = [*later, *backward]
    empties = frozenset(begins[number] for number in (*stream.emptied, *later))
    sizes, lags = stream.sizes(_values(job)), stream.lags_by_slot()
    settings = parse_settings(job.scenario.allocator_settings)
    program = SlotEvents(stream.events, sizes, streams, begins, empties, lags, settings)
    return for_replay(replace(program, again=_later_step(stream)))


def _later_step(stream: RequestStream) -> tuple[int, int]:
    """The events of the steps after the first one: where they begin, and the one behind the last update."""
    phases = [*stream.phases, (len(stream.events), "")]
    updates = [number for number, (_, name) in enumerate(phases) if name == "optimizer_step"]
    first = next(
        number for number, (_, name) in enumerate(phases) if number > updates[0] and name != "optimizer_step"
    )
    return phases[first][0], phases[updates[-1] + 1][0]


def _most_reserved(job: Job, stream: RequestStream, events: SlotEvents, order: int) -> int:
    """Most bytes reserved after batches that are each longer than all before them, in one drawn order.

    Shorter batches find room in what longer ones left, so only new longest batches are replayed.  Those of
    the first accumulated micro-steps come before the optimizer makes its states, which then lie in blocks
    that they left.  An evaluation has the last length.
    Source: transformers 5.23 trainer.py ``_inner_training_loop``: the optimizer steps once for as many
    micro-steps as are accumulated.
    """
    lengths = drawn_longest(job, order)
    if len(lengths) <= 1:
        return 0
    sizes = [stream.sizes(_values(job.at_length(each.tokens))) for each in lengths]
    if job.model.stage is None and int(job.recipe.batch.grad_accum) == 1:
        return max(replay_parts(events, _whole_steps(events, sizes)))
    later = [begin for begin, phase in stream.phases if phase == "forward_2"]
    # Of a pipeline all micro-steps of a step run at once.
    start = later[-1] if job.model.stage is None else later[0]
    updates = [begin for begin, phase in stream.phases if phase == "optimizer_step"]
    update, end = updates[0], next(begin for begin in updates if begin > start)
    again, *_ = passing(events.events[start:end], len(events.sizes))
    n_first = sum(each.micro_step < int(job.recipe.batch.grad_accum) for each in lengths)
    before = [events.events[:update], *[again] * (n_first - 1)]
    behind = [events.events[update:end], *[again] * (len(sizes) - n_first)]
    parts = [*zip(before, sizes, strict=False), *zip(behind, sizes[n_first - 1 :], strict=True)]
    return max(replay_parts(events, [*parts, (events.events[end:], sizes[-1])]))


def _whole_steps(
    events: SlotEvents, sizes: Sequence[Sequence[int]]
) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Each batch as a step of its own: its gradients are gone before the next one runs forward."""
    begin, end = events.again
    again, *_ = passing(events.events[begin:end], len(events.sizes))
    between = [(again, each) for each in sizes[1:-1]]
    return [(events.events[:begin], sizes[0]), *between, (events.events[begin:], sizes[-1])]


def _by_phase(stream: RequestStream, events: SlotEvents, done: SlotReplay) -> Iterator[PhaseBytes]:
    """Each phase once, in the order of a first step; what several micro-steps go through takes the most."""
    terms = terms_at(stream, events, [phase.peak_event for phase in done.phases])
    found: dict[Phase, PhaseBytes] = {}
    for (_, name), replay, held in zip(stream.phases, done.phases, terms, strict=True):
        # Blocks are larger than what was asked for: rounding, and remainders that are not cut off.
        held["other_temporaries"] = (
            held.get("other_temporaries", 0) + replay.allocated_bytes - sum(held.values())
        )
        before = found.get(name)
        reserved = maximum(replay.reserved_bytes, before.reserved_bytes if before else 0)
        if before and name == "optimizer_step":
            # The second one comes after passes whose blocks stay reserved.
            reserved = before.reserved_bytes
        if before is None or replay.allocated_bytes > before.allocated_bytes:
            found[name] = PhaseBytes(name, replay.allocated_bytes, reserved, held)
        else:
            found[name] = PhaseBytes(name, before.allocated_bytes, reserved, before.terms)
    return iter(sorted(found.values(), key=lambda each: PHASES.index(each.phase)))


def terms_at(stream: RequestStream, events: SlotEvents, moments: list[int]) -> list[dict[TermName, int]]:
    """Bytes of each term after each of the events ``moments``, which are in order; terms as they come up."""
    order: dict[int, None] = {}
    by_slot = sorted(range(len(TERM_NAMES)), key=stream.kinds.tobytes().find)
    found = []
    for held in held_at(events.events, events.sizes, stream.kinds, len(TERM_NAMES), moments):
        order |= dict.fromkeys(kind for kind in by_slot if held[kind])
        found.append({TERM_NAMES[kind]: held[kind] for kind in order if held[kind]})
    return found


def states_at_end(stream: RequestStream, events: SlotEvents) -> int:
    """Bytes of weights, adapters and optimizer states that are there when the step ends."""
    (held,) = held_at(events.events, events.sizes, stream.kinds, len(TERM_NAMES), [len(events.events) - 1])
    return sum(n_bytes for term, n_bytes in zip(TERM_NAMES, held, strict=True) if term in STATE_TERMS)
