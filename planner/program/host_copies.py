"""What a micro-step's forward pass sends to host RAM for its backward."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from planner.arrays import first_of
from planner.domain.recipes.recipe import Number
from planner.program.job import Job
from planner.program.ops.tensors import Unit
from planner.program.ops.work import Direction, ToHost
from planner.program.step import parts_of

WAITING: tuple[Direction, ...] = ("forward",)
"""Passes whose copies wait together; what a recomputation sends comes back in the backward of its layer."""
SENT: tuple[Direction, ...] = ("forward", "again")


def copies_to_host(
    job: Job, values: Mapping[Unit, Number], directions: Collection[Direction]
) -> list[tuple[float, Number]]:
    """Tensors of one size: how many, and bytes of each; ``values``: the number of each unit.

    Points of a grid that differ in sizes alone send the tensors that its first point sends.
    """
    found: list[tuple[float, Number]] = []
    for part in parts_of(_one_point(job)):
        for (direction, _, kind), counts in part.template.work.items():
            if isinstance(kind, ToHost) and direction in directions:
                for unit, amount in counts.items():
                    found.append((part.count * amount / kind.unit_bytes, kind.unit_bytes * values[unit]))
    return found


def _one_point(job: Job) -> Job:
    recipe, batch = job.recipe, job.recipe.batch
    one = replace(
        batch,
        micro_batch=first_of(batch.micro_batch),
        grad_accum=first_of(batch.grad_accum),
        seq_len=first_of(batch.seq_len),
        tokens_per_sample=first_of(batch.tokens_per_sample),
    )
    return replace(job, scenario=replace(job.scenario, recipe=replace(recipe, batch=one)))
