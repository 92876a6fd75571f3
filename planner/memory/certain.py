"""What a job must hold whatever its layers compute: weights, gradients and optimizer states.

Sums over the parameters of the job, in the dtypes of its regime and divided as its engine divides them.
Ignored: rounding to blocks, flat buffers and what an engine holds beside its part; so each is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.anatomy.packing import constants_bytes
from planner.domain.recipes.recipe import Number
from planner.domain.term import TermName
from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.parameters import Parameters
from planner.program.update.states import states_of


def certain_bytes(job: Job) -> dict[TermName, Number]:
    """Bytes on one GPU of each state, and of the gradients that are there while the optimizer steps.

    Formula: elements times bytes of each, over the GPUs that divide it.
    Source: :mod:`planner.program.parameters`, :mod:`planner.program.update.states`,
    :mod:`planner.anatomy.regime`, which the step program reads, too.
    """
    found: dict[TermName, Number] = {}
    for name, n_bytes in _parts(job):
        found[name] = found.get(name, 0) + n_bytes
    return {name: n_bytes for name, n_bytes in found.items() if n_bytes}


def _parts(job: Job) -> Iterator[tuple[TermName, Number]]:
    regime, own = job.regime, job.weight_shards
    adapters = job.recipe.shards(job.hardware) if job.recipe.sharding.divides_weights else 1
    yield "quantization_constants", sum(constants_bytes(job.recipe.numerics, job.packed)) / own
    for each in job.parameters:
        held = each.count * job.elements(each) * each.element_bytes
        yield ("adapters", held / adapters) if each.weight.adapter else ("weights", held / own)
    for each in job.trained_parameters:
        elements = each.count * job.elements(each) / job.optimizer_shards
        yield "master_weights", elements * regime.master
        yield "optimizer_states", _states(job, each) / job.optimizer_shards
        if not job.recipe.optimizer_in_backward:
            width = regime.gradient if regime.engine == "deepspeed" else each.element_bytes
            yield "gradients", elements * width


def _states(job: Job, each: Parameters) -> Number:
    """Bytes of the states of equal parameters that are the allocator's; paged ones may be elsewhere."""
    values = unit_values(job)
    weight = replace(each.weight, dtype="fp32") if job.regime.state == 4 else each.weight
    total: Number = sum(
        state.unit_bytes * values[state.unit] for state in states_of(job, weight) if not state.paged
    )
    return each.count * total
