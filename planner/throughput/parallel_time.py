"""Seconds that GPUs which share a batch take to send one another parts of tensors."""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.recipes.recipe import Number
from planner.program.ops.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    GATHERED_KEYS,
    REDUCE_SCATTER,
    SCATTERED_KEYS,
    SENT_KEYS,
)
from planner.program.ops.sizes import unit_values
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
    values, shares = unit_values(job.own), _shares(parallel.tensor, parallel.context)
    total: Number = 0
    for part in parts_of(job.own):
        made = zip(part.template.ops, part.template.units, part.template.unit_bytes, strict=True)
        for (_, op), unit, unit_bytes in made:
            if op in shares:
                total = total + part.count * shares[op] * unit_bytes * values[unit]
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
    }


def parallel_seconds(job: TimedJob) -> Number:
    """The same over the sustained rate of the links of a node, while kernels wait; seconds per micro-step.

    Source: as of :func:`parallel_bytes`; the next kernel reads what a collective makes, so nothing hides it.
    Ignored: the latency of each collective (about 20 us).
    """
    return parallel_bytes(job) / intra_node_bytes_per_s(job.scenario.hardware, job.coefficients)
