"""Seconds of a vision tower and its projector: those of a transformer whose tokens are patches."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from planner.anatomy.adapters import is_adapted
from planner.anatomy.trained import is_tower_checkpointed, makes_patches_require_gradient, parts_of
from planner.anatomy.work import FLOP_PER_MAC, forward_flop, model_flop
from planner.arrays import minimum
from planner.domain.model import AttentionSpec, BlockGroup, BlockSpec, EmbeddingSpec, ModelSpec
from planner.domain.recipe import Adapter, Batch, Number, Recipe
from planner.domain.vision import TowerSpec
from planner.throughput.evaluation import forward_seconds
from planner.throughput.job import Job, job_of
from planner.throughput.kernels import adapter_seconds, attention_ramp, elementwise_seconds, matmul_seconds

_NO_ADAPTERS = Adapter(rank=1, targets=(), dropout=0.0, modules_to_save=(), dtype="fp32", dora=False)
# Products of attention backward over forward, of a flash kernel;
# its launches forward and backward for each piece.
_BACKWARD_OVER_FORWARD, _LAUNCHES_FORWARD, _LAUNCHES_BACKWARD = 2.5, 1, 3


def tower_seconds(job: Job) -> Number:
    """Kernels of a vision tower and its projector in one micro-step; seconds.

    Formula: those of :mod:`planner.throughput.kernels` for a model whose tokens are the patches of all
    images, without a loss.  A tower that needs no gradients has those of a forward pass.  Attention sees
    whole pieces: a window or an image each.
    Source: transformers 5.23 models/*/modeling_*.py, the ``forward`` of each tower.
    Ignored: tables of positions, and the scatter into the embeddings.
    Expanded weights and casts are in their own terms.
    """
    tower = tower_job(job)
    if tower is None:
        return 0.0
    attention = _attention_seconds(job, tower)
    if not runs_backward(job):
        return forward_seconds(tower) + attention
    both_ways = tower.passes + _BACKWARD_OVER_FORWARD
    return matmul_seconds(tower) + elementwise_seconds(tower) + adapter_seconds(tower) + attention * both_ways


def tower_operators(job: Job) -> Number:
    """Operators that the host issues for a tower in one micro-step,
    with a call of attention's kernel for each piece.

    Source: :mod:`planner.throughput.operators`; transformers 5.23 models/qwen2_5_vl/modeling_qwen2_5_vl.py
    Qwen2_5_VLVisionAttention.forward.
    """
    tower = tower_job(job)
    if tower is None:
        return 0
    pieces, counted = _n_pieces(job), tower.profile.operators
    if not runs_backward(job):
        return counted.forward + pieces * _LAUNCHES_FORWARD
    return counted.total + pieces * (tower.passes * _LAUNCHES_FORWARD + _LAUNCHES_BACKWARD)


def tower_flop(job: Job) -> Number:
    """FLOP that the method needs in a tower for one micro-step, without recomputation.

    Source: as :func:`planner.anatomy.work.model_flop`.
    """
    tower = tower_job(job)
    if tower is None:
        return 0
    patches, attention = tower.micro.computed, _attention_flop(job)
    if not runs_backward(job):
        return forward_flop(tower.work, patches, 1) + attention
    return model_flop(tower.work, tower.rank, patches, 1) + 3 * attention


def runs_backward(job: Job) -> bool:
    """Whether gradients reach the tower: something of it is trained, or its input requires one.

    Source: :func:`planner.anatomy.trained.makes_patches_require_gradient`.
    """
    return _is_trained(job) or makes_patches_require_gradient(job.recipe, job.scenario.stack)


def _is_trained(job: Job) -> bool:
    """Whether weights or adapters of the tower's layers are trained."""
    vision, adapter = job.scenario.model.vision, job.recipe.adapter
    if vision is None:
        return False
    linears = (linear for group in vision.groups for linear in group.block.linears)
    adapted = adapter is not None and any(is_adapted(linear, adapter.targets) for linear in linears)
    return adapted or "tower" in parts_of(job.scenario.model, job.recipe).ends


def tower_job(job: Job) -> Job | None:
    """The tower as a job of its own, whose tokens are patches and whose attention is counted apart;
    ``None`` without images.

    Source: the shapes of :func:`tower_model`.
    """
    vision, images = job.scenario.model.vision, job.recipe.batch.images
    if vision is None or images is None:
        return None
    batch = Batch(job.recipe.batch.rows * images.per_sample, 1, images.patches, "packed", images.patches)
    recipe = replace(_recipe(job), batch=batch, task="sft", frozen=())
    tower = job_of(
        replace(job.scenario, model=tower_model(vision), recipe=recipe), job.coefficients, job.regime
    )
    if tower is None:
        return None
    work = replace(tower.work, attention=())
    return replace(tower, profile=replace(tower.profile, work=work))


def _recipe(job: Job) -> Recipe:
    """What the recipe means for the tower: a part of it that is not trained gets no gradients of weights."""
    recipe, stack, trained = job.recipe, job.scenario.stack, _is_trained(job)
    again = is_tower_checkpointed(recipe, stack, trained=trained)
    if recipe.adapter is None and not trained:
        recipe = replace(recipe, method="lora", adapter=_NO_ADAPTERS)
    return replace(recipe, gradient_checkpointing=again)


@lru_cache(maxsize=64)
def tower_model(vision: TowerSpec) -> ModelSpec:
    """The tower as a model: its convolution as the head, and the projector as layers,
    in numbers for each patch.

    Source: the shapes of :class:`planner.domain.vision.TowerSpec`.
    """
    behind = (*vision.stacked, *vision.projectors)
    projectors = tuple(BlockGroup(group.count, _for_each_patch(group.block, vision)) for group in behind)
    return ModelSpec(
        id="vision tower",
        hub_id="",
        architecture=vision.code,
        hidden_size=vision.width,
        vocab_size=vision.patch.out_features,
        groups=(*vision.groups, *projectors),
        token_embedding=EmbeddingSpec("patch_embed", 1, 1),
        head=replace(vision.patch, group="head", reads="head_in", kind="linear"),
        tied=False,
        max_position_tokens=None,
    )


def _for_each_patch(block: BlockSpec, vision: TowerSpec) -> BlockSpec:
    linears = tuple(
        replace(linear, in_features=max(1, round(linear.in_features * vision.token_share)))
        for linear in block.linears
    )
    return replace(block, linears=linears)


def _attention_flop(job: Job) -> Number:
    """FLOP of scores and weighted values of one forward pass."""
    return sum(
        FLOP_PER_MAC * layers * _features(spec) * keys * patches
        for layers, spec, keys, patches in _pieces(job)
    )


def _attention_seconds(job: Job, tower: Job) -> Number:
    """One forward pass of attention; short pieces fill the card less."""
    rate = tower.rates.attention_flop_per_s
    return sum(
        FLOP_PER_MAC * layers * _features(spec) * keys * patches * attention_ramp(keys) / rate
        for layers, spec, keys, patches in _pieces(job)
    )


def _n_pieces(job: Job) -> Number:
    """Calls of attention's kernel beyond one for each layer, where the code calls it piece by piece."""
    if job.recipe.attention != "sdpa":
        return 0
    pieces = [
        (layers, patches / keys) for layers, spec, keys, patches in _pieces(job) if spec.pieces != "none"
    ]
    return sum(layers * (number - 1) for layers, number in pieces)


def _pieces(job: Job) -> list[tuple[int, AttentionSpec, Number, Number]]:
    """Layers, attention, patches of a piece and all patches, of each kind of layer."""
    vision, images = job.scenario.model.vision, job.recipe.batch.images
    if vision is None or images is None:
        return []
    patches = job.recipe.batch.rows * images.per_sample * images.patches
    kinds = [(group.count, group.block.attention) for group in vision.groups]
    return [
        (n, spec, minimum(spec.window_tokens or images.patches, images.patches), patches) for n, spec in kinds
    ]


def _features(spec: AttentionSpec) -> int:
    return spec.n_heads * (spec.head_dim + spec.value_head_dim)
