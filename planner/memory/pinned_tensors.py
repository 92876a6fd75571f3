"""Parameters one by one, because engines pin them one by one and each pinned block is rounded up by
itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from planner.anatomy.adapters import adapter_shapes
from planner.anatomy.parameters import is_quantizable
from planner.anatomy.regime import Regime
from planner.arrays import ceil_div, ceil_pow2, where
from planner.domain.model import BlockSpec, ModelSpec, NormSpec
from planner.domain.recipes.recipe import Number
from planner.program.engines.settings import settings_of
from planner.program.job import Job


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
    """Parameters that the optimizer has: all of them, or adapters and ``modules_to_save`` (counted as one).

    Source: the shapes of the model; :func:`planner.anatomy.adapters.adapter_shapes`; dtypes of
    :mod:`planner.anatomy.regime`.
    """
    adapter, regime = job.recipe.adapter, job.regime
    if adapter is None:
        return _base_tensors(job)
    shapes = adapter_shapes(job.model, adapter.targets)
    matrices = tuple(
        Tensors(adapter.rank * ranks * width, count, regime.adapter) for ranks, width, count in shapes
    )
    return (*matrices, Tensors(job.saved_params, 1, regime.outside)) if job.saved_params else matrices


def frozen_tensors(job: Job) -> tuple[Tensors, ...]:
    """Parameters that no optimizer has and that the engine divides: none of a full fine-tune,
    and no k-bit ones of bytes.

    Source: the shapes of the model.
    """
    return () if job.recipe.adapter is None else _base_tensors(job)


def _base_tensors(job: Job) -> tuple[Tensors, ...]:
    return _equal_together(job.model, _Storage(job.regime, job.stack.skips_experts, job.recipe.divides_base))


@dataclass(frozen=True, slots=True)
class _Storage:
    """What decides how a base is stored, whatever the sizes of the recipe."""

    regime: Regime
    skips_experts: bool
    divides_base: bool


@lru_cache(maxsize=256)
def _equal_together(model: ModelSpec, storage: _Storage) -> tuple[Tensors, ...]:
    """The parameters of a base, equal ones counted together; remembered,
    because a model has many and few that differ.
    """
    counts: dict[tuple[int, float], int] = {}
    for each in _model_tensors(model, storage):
        key = (int(each.elements), each.element_bytes)
        counts[key] = counts.get(key, 0) + each.count
    return tuple(
        Tensors(elements, count, element_bytes) for (elements, element_bytes), count in counts.items()
    )


def _model_tensors(model: ModelSpec, storage: _Storage) -> Iterator[Tensors]:
    regime = storage.regime
    for group in model.groups:
        yield from _block_tensors(storage, group.block, group.count)
    yield from _norm_tensors(model.final_norms, 1, regime.norm_weight)
    for table in (model.token_embedding, *model.extra_embeddings):
        yield Tensors(table.param_count, 1, regime.outside)
    for linear in (*model.extra_linears, *(() if model.tied else (model.head,))):
        yield Tensors(linear.weight_count, 1, regime.outside)


def _block_tensors(storage: _Storage, block: BlockSpec, count: int) -> Iterator[Tensors]:
    regime = storage.regime
    for linear in block.linears:
        copies = 1 if linear.kind == "parameter" and storage.skips_experts else linear.copies
        kbit = regime.quantized and is_quantizable(linear, storage.skips_experts)
        if not kbit or storage.divides_base:
            yield Tensors(linear.weight_count // copies, copies * count, 0.5 if kbit else regime.base)
        if linear.bias_count:
            yield Tensors(linear.bias_count // copies, copies * count, regime.base)
    if block.extra_params:
        yield Tensors(block.extra_params, count, regime.base)
    yield from _norm_tensors(block.norms, count, regime.norm_weight)


def _norm_tensors(norms: tuple[NormSpec, ...], count: int, element_bytes: int) -> Iterator[Tensors]:
    for norm in norms:
        if norm.weight:
            yield Tensors(norm.width, norm.copies * count * (1 + int(norm.bias)), element_bytes)


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
