"""Parameters one by one, because engines pin them one by one and each pinned block is rounded up by
itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from planner.anatomy.packing import packed_bytes
from planner.arrays import ceil_div, ceil_pow2, where
from planner.domain.recipes.recipe import Number
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.structures import NO_BATCH
from planner.program.engines.settings import settings_of
from planner.program.job import Job, job_of
from planner.program.ops.tensors import Unit
from planner.program.parameters import Weight, adapter_weights, model_weights


@dataclass(frozen=True, slots=True)
class Tensors:
    """``count`` equal parameters of ``elements`` elements;
    ``element_bytes`` each as they are stored (0.5: packed 4-bit).
    """

    elements: Number
    count: int
    element_bytes: float


def pinned_bytes(exact_bytes: Number) -> Number:
    """Bytes that a pinned allocation of ``exact_bytes`` really takes.

    torch's pinned allocator rounds each block up to a power of two.  Source: torch 2.13
    ATen/core/CachingHostAllocator.h, measured 1.78x for 2.25 GiB.
    """
    return ceil_pow2(exact_bytes)


def trained_tensors(job: Job) -> tuple[Tensors, ...]:
    """Parameters that the optimizer has.  Source: :mod:`planner.program.parameters`."""
    return _tensors(job, lambda kind: kind.trained)


def frozen_tensors(job: Job) -> tuple[Tensors, ...]:
    """Parameters that no optimizer has and that the engine divides, which are no k-bit ones of bytes.

    Source: :mod:`planner.program.parameters`.
    """
    divides = job.recipe.divides_base
    return _tensors(job, lambda kind: not kind.trained and (divides or not kind.packed))


def whole_bytes(job: Job) -> Number:
    """Bytes of all parameters, adapters and trained copies among them, of a model that is not divided.

    Source: :mod:`planner.program.parameters`.
    """
    return sum(each.count * each.elements * each.element_bytes for each in _tensors(job, lambda _: True))


@dataclass(frozen=True, slots=True)
class _Kind:
    """Parameters that are alike, and how many they are; elements for each of ``unit``."""

    unit: Unit
    elements: float
    element_bytes: float
    trained: bool
    packed: bool


def _tensors(job: Job, chosen: Callable[[_Kind], bool]) -> tuple[Tensors, ...]:
    rank = job.recipe.adapter.rank if job.recipe.adapter else 0
    return tuple(
        Tensors(kind.elements * (rank if kind.unit is Unit.RANK else 1), count, kind.element_bytes)
        for kind, count in _kinds(_sizeless(job))
        if chosen(kind)
    )


def _sizeless(job: Job) -> Scenario:
    """The scenario without numbers, which no parameter depends on."""
    recipe, hardware = job.recipe, job.hardware
    batch = replace(NO_BATCH, images=recipe.batch.images)
    adapter = replace(recipe.adapter, rank=1) if recipe.adapter else None
    return replace(
        job.scenario,
        recipe=replace(recipe, batch=batch, adapter=adapter),
        hardware=replace(hardware, gpus_per_node=1),
        assumptions=(),
        warnings=(),
    )


@lru_cache(maxsize=256)
def _kinds(scenario: Scenario) -> tuple[tuple[_Kind, int], ...]:
    """The parameters of a model, equal ones counted together; a model has many and few that differ."""
    job = job_of(scenario, Coefficients())
    base, adapters = model_weights(job), adapter_weights(job)
    known, regime = {each.name for each in base}, job.regime
    kinds = Counter(_kind_of(job, each, regime.outside if each.outside else regime.base) for each in base)
    # Trained copies of modules have the names of these.
    kinds += Counter(
        _kind_of(job, each, regime.outside if each.name in known else regime.adapter) for each in adapters
    )
    return tuple(kinds.items())


def _kind_of(job: Job, weight: Weight, element_bytes: float) -> _Kind:
    if weight.packed:
        element_bytes = packed_bytes(job.recipe.numerics, 1)
    elif weight.kind == "norm":
        element_bytes = job.regime.norm_weight
    return _Kind(weight.unit, weight.count, element_bytes, weight.trained, weight.packed)


def parts_pinned_alone_bytes(job: Job, tensors: tuple[Tensors, ...]) -> Number:
    """Pinned bytes of this process's part of each of ``tensors``, each rounded by itself;
    parameters that persist have none.

    Under ZeRO-3 parameters below the persistence threshold stay on the GPU.
    Source: DeepSpeed 0.19.8 zero/partition_parameters.py _partition_param (``pin_memory`` of each
    ``ds_tensor``); torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param.py (``sharded_param.pin_memory``).
    """
    shards = job.recipe.shards(job.hardware)
    persists = settings_of(job).persistence if job.recipe.sharding.is_zero3 else 0
    total: Number = 0
    for each in tensors:
        one = pinned_bytes(ceil_div(each.elements, shards) * each.element_bytes)
        total = total + where(each.elements > persists, each.count * one, 0)
    return total


def parts_bytes(job: Job, tensors: tuple[Tensors, ...]) -> Number:
    """The same without pinning: exact bytes of this process's part of each of ``tensors``.

    Source: as of :func:`parts_pinned_alone_bytes`.
    """
    persists = settings_of(job).persistence if job.recipe.sharding.is_zero3 else 0
    total: Number = 0
    for each in tensors:
        part = each.count * each.elements * each.element_bytes / job.hardware.world_size
        total = total + where(each.elements > persists, part, 0)
    return total
