"""What DeepSpeed is told: the sizes of its buckets, and what is offloaded.

Source: transformers 5.23 integrations/deepspeed.py trainer_config_finalize;
DeepSpeed 0.19.8 runtime/zero/config.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.recipes.recipe import DTYPE_BYTES
from planner.program.job import Job

FP32 = 4
# DeepSpeed's own defaults, in elements.
_REDUCE_BUCKET = 500_000_000
_PREFETCH_BUCKET = 50_000_000
_PERSISTENCE = 100_000
# What "auto" stands for.
_PREFETCH_SHARE = 0.9
_PERSISTENCE_WIDTHS = 10


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes in elements; ``element_bytes``: of the engine's dtype; ``world``: processes that divide a copy.

    ``max_live``: what may be whole at a time; ``max_reuse``: how far ahead a use counts as soon;
    ``sub_group``: what the optimizer updates at a time; ``hpz``: processes that divide a second copy.
    ``reduces_wide``: gradients of 16 bits are sent in fp32.  ``keeps_recomputed``: see the switch
    ``zero3_keeps_recomputed``; ``for_model``: until all of the model is done.  ``counts_early``: see the
    switch ``zero3_counts_from_backward``.  ``quantizes_weights``, ``quantizes_gradients``: what is sent in 8
    or 4 bits; ``computes_half``: in fp16.
    """

    world: int
    element_bytes: int
    bucket: int
    overlaps: bool
    accumulates: bool
    offloads_optimizer: bool
    offloads_params: bool
    prefetch: int
    persistence: int
    max_live: int
    max_reuse: int
    sub_group: int
    hpz: int = 1
    reduces_wide: bool = False
    keeps_recomputed: bool = False
    for_model: bool = False
    counts_early: bool = False
    quantizes_weights: bool = False
    quantizes_gradients: bool = False
    computes_half: bool = False


def reference_settings(job: Job) -> Settings:
    """Those of an engine for a second model: what is ``auto`` is not filled in for it,
    so that DeepSpeed's own values hold.

    Source: trl 0.15.2 and 1.16.0 models/utils.py prepare_deepspeed, whose keys with dots say nothing;
    DeepSpeed 0.19.8 runtime/config_utils.py DeepSpeedConfigModel drops ``auto``.
    """
    return settings_of(job, fills=False)


def settings_of(job: Job, *, fills: bool = True) -> Settings:
    """The settings of a DeepSpeed job on its stack; ``fills``: ``auto`` is filled in by hidden size."""
    recipe, stack, width = job.recipe, job.stack, job.model.hidden_size
    auto, stage_3 = fills and stack.zero_auto_buckets, recipe.sharding.is_zero3
    stage_12_bucket = stack.zero12_bucket_elements or width * width
    stage_3_bucket = _said(stack.zero3_bucket_elements, width * width if auto else _REDUCE_BUCKET)
    prefetch = int(_PREFETCH_SHARE * width * width) if auto else _PREFETCH_BUCKET
    persistence = _PERSISTENCE_WIDTHS * width if auto else _PERSISTENCE
    element_bytes = DTYPE_BYTES[recipe.numerics.compute_dtype] if recipe.numerics.mixed else FP32
    return Settings(
        world=int(job.hardware.world_size) // job.recipe.parallel.tensor,
        element_bytes=element_bytes,
        bucket=stage_3_bucket if stage_3 else stage_12_bucket,
        overlaps=stack.zero3_overlap if stage_3 else stack.zero12_overlap,
        accumulates=int(recipe.batch.grad_accum) > 1,
        offloads_optimizer=recipe.offloads_optimizer,
        offloads_params=recipe.offloads_params,
        prefetch=_said(stack.zero3_prefetch_elements, prefetch),
        persistence=_said(stack.zero3_persistence_elements, persistence),
        max_live=stack.zero3_live_elements,
        max_reuse=stack.zero3_reuse_elements,
        sub_group=stack.zero3_sub_group_elements,
        hpz=recipe.parallel.hpz,
        reduces_wide=element_bytes < FP32 and _sums_wide(job),
        keeps_recomputed=stack.zero3_keeps_recomputed,
        for_model=recipe.checkpoint_reentrant and stack.recomputes_hooks,
        counts_early=stack.zero3_counts_from_backward,
        quantizes_weights="weights" in stack.zero3_quantized,
        quantizes_gradients=quantizes_gradients(job),
        computes_half=recipe.numerics.mixed and recipe.numerics.compute_dtype == "fp16",
    )


def quantizes_gradients(job: Job) -> bool:
    """Whether gradients are sent in 4 bits: between nodes alone.

    Source: DeepSpeed 0.19.8 runtime/zero/stage3.py __avg_scatter_grads (``num_nodes > 1``).
    """
    return "gradients" in job.stack.zero3_quantized and job.hardware.nodes > 1


def _sums_wide(job: Job) -> bool:
    """Whether gradients are summed in fp32."""
    stack = job.stack
    divides = stack.model_parallel == "features" and job.recipe.parallel.context > 1
    return stack.zero_sums_fp32 == "always" or (stack.zero_sums_fp32 == "divided_sequences" and divides)


def _said(number: int, usual: int) -> int:
    """The number that a file says; -1 where it says none."""
    return usual if number < 0 else number
