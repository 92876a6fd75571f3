"""What the sharding runtime of a scenario is told: stage, sizes of buckets, streams."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.recipe import DTYPE_BYTES
from planner.domain.scenario import Scenario

# DeepSpeed's own defaults, in elements.  Source: DeepSpeed 0.19.8 runtime/zero/config.py.
_REDUCE_BUCKET = 500_000_000
_PREFETCH_BUCKET = 50_000_000
_PERSISTENCE = 100_000
_MAX_LIVE = 1_000_000_000
_MAX_REUSE_DISTANCE = 1_000_000_000
_SUB_GROUP = 1_000_000_000
# What "auto" stands for in transformers 5.23 integrations/deepspeed.py trainer_config_finalize.
_PREFETCH_SHARE = 0.9
_PERSISTENCE_WIDTHS = 10


@dataclass(frozen=True, slots=True)
class ZeroSettings:
    """A DeepSpeed run.  Sizes in elements; ``element_bytes`` is of the engine's dtype, ``world`` the number of processes.

    ``rank`` is the process that is traced: the last one, because backward reaches the parameters whose gradients it keeps first,
    when most activations are still there.
    """

    stage: int
    world: int
    element_bytes: int
    bucket_elements: int
    overlaps: bool
    accumulates: bool
    offloads_optimizer: bool
    offloads_params: bool
    uploads_in_fp32: bool
    prefetch_elements: int
    persistence_elements: int
    rank: int
    max_live_elements: int = _MAX_LIVE
    max_reuse_elements: int = _MAX_REUSE_DISTANCE
    sub_group_elements: int = _SUB_GROUP


def zero_settings(scenario: Scenario) -> ZeroSettings:
    """The settings of a DeepSpeed scenario, as the Trainer finishes them with the bucket sizes of the stack.

    Source: transformers 5.23 integrations/deepspeed.py trainer_config_finalize; DeepSpeed 0.19.8 runtime/zero/config.py (stage 3
    overlaps by default); the switches ``zero_auto_buckets``, ``zero12_bucket_elements``, ``zero12_overlap``, ``zero12_upload``.
    """
    recipe, stack = scenario.recipe, scenario.stack
    stage, width = int(recipe.sharding.removeprefix("zero")), scenario.model.hidden_size
    auto = stack.zero_auto_buckets
    bucket = (width * width if auto else _REDUCE_BUCKET) if stage == 3 else stack.zero12_bucket_elements or width * width
    world = int(scenario.hardware.world_size)
    return ZeroSettings(
        stage=stage,
        world=world,
        rank=world - 1,
        element_bytes=DTYPE_BYTES[recipe.numerics.compute_dtype] if recipe.numerics.mixed else 4,
        bucket_elements=bucket,
        overlaps=stage == 3 or stack.zero12_overlap,
        accumulates=int(recipe.batch.grad_accum) > 1,
        offloads_optimizer=recipe.offloads_optimizer,
        offloads_params=recipe.offloads_params,
        uploads_in_fp32=stack.zero12_upload == "fp32_on_gpu",
        prefetch_elements=int(_PREFETCH_SHARE * width * width) if auto else _PREFETCH_BUCKET,
        persistence_elements=_PERSISTENCE_WIDTHS * width if auto else _PERSISTENCE,
    )
