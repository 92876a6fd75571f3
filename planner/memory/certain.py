"""What a job must hold whatever its operators are: a lower bound that no program has to be read for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.anatomy.packing import constants_bytes
from planner.domain.recipes.recipe import Number
from planner.domain.term import DRIVER_TERMS, TermName
from planner.memory.outside import driver_terms
from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.parameters import Parameters
from planner.program.update.states import states_of

_PAGED = "paged_optimizer_states"


def least_certain_bytes(job: Job) -> Number:
    """All that is certain, with what lies outside of the allocator.

    Source: :func:`certain_bytes`, :func:`outside_bytes`.
    """
    return sum(certain_bytes(job).values()) + outside_bytes(job, paged=False)


def outside_bytes(job: Job, *, paged: bool) -> Number:
    """Context and NCCL; what is paged may be elsewhere when memory is short.

    Source: :func:`planner.memory.outside.driver_terms`.
    """
    terms = (each for each in driver_terms(job) if each.name in DRIVER_TERMS)
    return sum(each.n_bytes for each in terms if paged or each.name != _PAGED)


def certain_bytes(job: Job) -> dict[TermName, Number]:
    """Bytes on one GPU of each state, and of the gradients that are there while the optimizer steps.

    Formula: elements times bytes of each, over the GPUs that divide it, of what is not offloaded.  Ignored:
    rounding to blocks, flat buffers and what an engine holds beside its part; so each is a lower bound.
    Source: :mod:`planner.program.parameters`, :mod:`planner.program.update.states`,
    :mod:`planner.anatomy.regime`, which the step program reads, too.
    """
    found: dict[TermName, Number] = {}
    for name, n_bytes in _parts(job):
        found[name] = found.get(name, 0) + n_bytes
    return {name: n_bytes for name, n_bytes in found.items() if n_bytes}


def _parts(job: Job) -> Iterator[tuple[TermName, Number]]:
    if not job.recipe.offloads_params:
        yield from _weights(job)
    if not (job.recipe.offloads_optimizer or job.recipe.optimizer_in_backward):
        yield from _of_update(job)


def _weights(job: Job) -> Iterator[tuple[TermName, Number]]:
    shards = job.recipe.shards(job.hardware) if job.recipe.sharding.divides_weights else 1
    yield "quantization_constants", sum(constants_bytes(job.recipe.numerics, job.packed)) / shards
    for each in job.parameters:
        held = each.count * job.elements(each) * each.element_bytes / shards
        yield ("adapters" if each.weight.adapter else "weights"), held


def _of_update(job: Job) -> Iterator[tuple[TermName, Number]]:
    regime = job.regime
    for each in job.trained_parameters:
        elements = each.count * job.elements(each) / job.optimizer_shards
        yield "master_weights", elements * regime.master
        yield "optimizer_states", _states(job, each) / job.optimizer_shards
        if each.weight.trained:
            width = regime.gradient if regime.engine == "deepspeed" else each.element_bytes
            yield "gradients", elements * width


def _states(job: Job, each: Parameters) -> Number:
    """Bytes of the states of equal parameters that are the allocator's; paged ones may be elsewhere.

    Without an engine they are like the parameter itself, of which a copy may be narrow.
    """
    values, regime = unit_values(job), job.regime
    wide = regime.state == 4 and (regime.engine != "native" or each.element_bytes == 4)
    weight = replace(each.weight, dtype="fp32") if wide else each.weight
    total: Number = sum(
        state.unit_bytes * values[state.unit] for state in states_of(job, weight) if not state.paged
    )
    return each.count * total
