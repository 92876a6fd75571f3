"""Seconds that GPUs take to send one another parts of tensors within the passes: those that share a batch,
and those that divide experts.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.arrays import maximum, minimum
from planner.domain.recipes.recipe import Number
from planner.program.ops.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    GATHERED_KEYS,
    PASSED_ON,
    REDUCE_SCATTER,
    SCATTERED_KEYS,
    SENT_KEYS,
)
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import EXCHANGED_ROWS
from planner.program.ops.work import SummedInPlace
from planner.program.step import parts_of
from planner.throughput.communication import ring_fraction
from planner.throughput.rates import intra_node_bytes_per_s
from planner.throughput.time_inputs import TimedJob


def parallel_bytes(job: TimedJob) -> Number:
    """Bytes that each GPU receives in one micro-step from those that share its batch.

    Formula: of every collective of the step program, the size of what it makes times (n - 1) / n for an
    all-gather or an exchange, twice that for an all-reduce, and (n - 1) for a reduce-scatter, which makes one
    part of ``n``.
    Source: :mod:`planner.program.ops.collectives`; nccl-tests ``doc/PERFORMANCE.md``.
    Where keys are gathered one head at a time, only the first gather is counted: kernels hide the others.
    Ignored: sums for each token that a loss over a divided vocabulary takes.
    """
    parallel = job.recipe.parallel
    if not parallel.divides:
        return 0
    return _made(job, _shares(parallel.tensor, parallel.context))


def _made(job: TimedJob, shares: Mapping[str, Number]) -> Number:
    """Bytes that operators make in one micro-step, each times its share."""
    values = unit_values(job.own)
    total: Number = 0
    for part in parts_of(job.own):
        made = zip(part.template.ops, part.template.units, part.template.unit_bytes, strict=True)
        for (_, op), unit, unit_bytes in made:
            if op in shares:
                total = total + part.count * shares[op] * unit_bytes * values[unit]
        for (_, _, kind), counts in part.template.work.items():
            if isinstance(kind, SummedInPlace) and ALL_REDUCE in shares:
                for unit, amount in counts.items():
                    total = total + part.count * shares[ALL_REDUCE] * amount * values[unit]
    return total


def _shares(tensor: int, context: int) -> Mapping[str, Number]:
    """Part of what a collective makes that a GPU receives, by operator."""
    return {
        ALL_REDUCE: 2 * ring_fraction(tensor),
        ALL_GATHER: ring_fraction(tensor),
        REDUCE_SCATTER: tensor - 1,
        GATHERED_KEYS: ring_fraction(context),
        SCATTERED_KEYS: context - 1,
        SENT_KEYS: context - 1,
        ALL_TO_ALL: ring_fraction(context),
        PASSED_ON: 1,
    }


def parallel_seconds(job: TimedJob) -> Number:
    """The same over the sustained rate of the links of a node, while kernels wait; seconds per micro-step.

    Source: as of :func:`parallel_bytes`; the next kernel reads what a collective makes, so nothing hides it.
    Ignored: the latency of each collective (about 20 us).
    """
    inside = parallel_bytes(job) / intra_node_bytes_per_s(job.scenario.hardware, job.coefficients)
    return inside + exchange_seconds(job)


def exchanged_bytes(job: TimedJob) -> Number:
    """Bytes that each GPU gets in one micro-step in exchanges of rows for experts, its own rows among them.

    Formula: what each exchange of the step program makes: ``tokens x top_k x hidden`` there and back, forward
    and backward, and once more where a layer is computed again.  Tokens spread evenly over the experts.
    Source: :mod:`planner.program.layers.mixture.dispatched`.
    """
    return _made(job, {EXCHANGED_ROWS: 1}) if job.recipe.parallel.experts > 1 else 0


def exchange_seconds(job: TimedJob) -> Number:
    """The same over the links, while kernels wait; seconds per micro-step.

    Formula: of ``e`` GPUs that divide experts ``g`` are in one node, beside those with other features of the
    same experts.  ``(g - 1) / e`` of the bytes go over the links of the node and ``(e - g) / e`` over this
    GPU's part of the network, both at the same time.
    Source: torchtitan e347b1e5e distributed/expert_parallel.py (the host waits for the sizes, then the
    kernels for the rows); nccl-tests ``doc/PERFORMANCE.md`` (all-to-all).
    Ignored: the latency of each exchange (about 20 us); GPUs whose experts get more tokens than others.
    """
    parallel, hardware = job.recipe.parallel, job.scenario.hardware
    n_bytes, group = exchanged_bytes(job), parallel.experts
    together = minimum(group, maximum(hardware.gpus_per_node // parallel.expert_tensor, 1))
    inside = (together - 1) / group * n_bytes / intra_node_bytes_per_s(hardware, job.coefficients)
    if hardware.nodes == 1:
        return inside
    apart = (group - together) / group * n_bytes * hardware.gpus_per_node / job.rates.network_bytes_per_s
    return maximum(inside, apart)
