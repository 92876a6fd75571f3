"""GPU memory without a replay: what is allocated, event by event,
and one slack for what is reserved above it.

For searches, levers and grids.  Whoever is shown, or is near the limit, is replayed
(:mod:`planner.memory.replayed_peak`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from planner.allocator.columns import fullest
from planner.arrays import maximum, where
from planner.domain.model import BlockGroup
from planner.domain.prediction import MemoryPrediction
from planner.domain.recipes.recipe import Number
from planner.domain.scenario import Scenario
from planner.domain.term import PHASES, Phase
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed import PhaseBytes, Replayed, slot_events, states_at_end, without_card
from planner.memory.replayed_peak import prediction_of
from planner.memory.structures import alike, program_of
from planner.program.engines.zero.deepspeed_settings import settings_of
from planner.program.job import Job, job_of
from planner.program.ops.sizes import unit_values

_Read = tuple[Mapping[Phase, Number], Number]
"""Most bytes allocated in each phase, and those of weights and states that are there when the step ends."""

SLACK_SHARE = 0.05
"""Of what comes and goes, reserved above what is allocated.

Measured: replays of 60 jobs of real widths of data/differential have 0.02 to 0.31 in eight of ten, half of
them above 0.08; the minimum has 0.01 to 0.16, half above 0.05.  At 0.05 reserved is off by 3.4 % on average
and the minimum by 2.2 %.
"""

_DEPTHS, _DEPTHS_ALONE = (8, 12), (4, 6)
"""Layers of the two models that stand for one of more than ``_DEEP``.

Fewer where what is saved of each layer is far above its gradients:
then the moment of the peak is the same at every depth.
"""
_DEEP = 24


def predict_quick(job: Job) -> MemoryPrediction:
    """Phase peaks and the three levels for one GPU, elementwise; no terms but those outside of the allocator.

    Formula: reserved is what is allocated and 5 % of what comes and goes at that moment, and so is the
    minimum memory.  On a grid there is one phase.
    Ignored: rounding to blocks; what batches of drawn lengths pile up.  That is between nothing and all that
    comes and goes at the peak, so the interval reaches as far.
    """
    done = _one(job) if job.is_one else _grid(job)
    return prediction_of(job, done, done.reserved_bytes)


def _one(job: Job) -> Replayed:
    phases, states = _known(without_card(job.scenario))
    return _with_slack(job, phases, states)


@lru_cache(maxsize=4096)
def _known(scenario: Scenario) -> _Read:
    # No coefficient moves a request.
    return _extrapolated(job_of(scenario, Coefficients()), _read)


def _extrapolated(job: Job, read: Callable[[Job], _Read]) -> _Read:
    """A deep model is read from two shallow ones: each phase grows by as much with every layer."""
    alone = (
        job.recipe.adapter and not job.recipe.gradient_checkpointing and not job.recipe.sharding.communicates
    )
    few, more = _DEPTHS_ALONE if alone else _DEPTHS
    layers = [group for group in job.model.groups if group.count > few]
    differ = job.recipe.rebuilds_some or job.recipe.train_layers
    if (
        job.model.stage is not None
        or len(layers) != 1
        or layers[0].count <= _DEEP
        or differ
        or _counts_elements(job, few, layers[0])
    ):
        return read(job)
    (base, base_states), (next_, next_states) = (read(_shallower(job, depth)) for depth in (few, more))
    steps = (layers[0].count - few) / (more - few)
    grown: dict[Phase, Number] = {
        phase: n_bytes + steps * (next_[phase] - n_bytes) for phase, n_bytes in base.items()
    }
    return grown, base_states + steps * (next_states - base_states)


def _shallower(job: Job, depth: int) -> Job:
    """The job with at most ``depth`` equal layers."""
    model = replace(
        job.model, groups=tuple(replace(each, count=min(each.count, depth)) for each in job.model.groups)
    )
    return job_of(replace(job.scenario, model=model), job.coefficients)


def _counts_elements(job: Job, depth: int, layers: BlockGroup) -> bool:
    """Whether DeepSpeed's buckets end inside of layers,
    or its window of whole parameters is wider than a shallow model.
    """
    sharding, elements = job.recipe.sharding, depth * layers.block.param_count
    return sharding.is_zero012 or (sharding.is_zero3 and elements < settings_of(job).max_live)


def _read(job: Job) -> _Read:
    stream = program_of(job)
    events = slot_events(stream, job)
    most: dict[Phase, Number] = {}
    for (_, phase), n_bytes in zip(
        stream.phases, fullest(events.events, events.sizes, events.begins), strict=True
    ):
        # Several micro-steps go through some phases.
        most[phase] = max(n_bytes, most.get(phase, 0))
    return most, states_at_end(stream, events)


def _grid(job: Job) -> Replayed:
    """The fullest phase of each point, and the states that stand at the end of its step."""
    from planner.memory.liveness import phase_bytes, state_bytes

    values = unit_values(job)

    def read(one: Job) -> _Read:
        stream = program_of(one)
        return phase_bytes(stream, values), state_bytes(stream, values)

    peak: Number = 0
    states: Number = 0
    for mask, one in alike(job):
        phases, held = _extrapolated(one, read)
        peak = where(mask, maximum(*phases.values()), peak)
        states = where(mask, held, states)
    return _with_slack(job, {"loss_2": peak}, states)


def _with_slack(job: Job, phases: Mapping[Phase, Number], states: Number) -> Replayed:
    made = tuple(
        PhaseBytes(phase, allocated, allocated + SLACK_SHARE * maximum(allocated - states, 0), {})
        for phase, allocated in sorted(phases.items(), key=lambda each: PHASES.index(each[0]))
    )
    most = maximum(*phases.values())
    batch = job.recipe.batch
    varies: Any = (
        batch.padding == "longest"
        and job.stack.piles_up
        and not job.scenario.segments_grow
        and batch.tokens_per_sample < batch.seq_len
    )
    return Replayed(made, states, 0, where(varies, maximum(most - states, 0), 0))
