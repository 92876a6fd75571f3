"""What the sharding runtime of a scenario is told: stage, sizes of buckets, streams."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from measure.trace.sharding.sharded_parameters import TracedParameter
from planner.domain.recipes.recipe import DTYPE_BYTES
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack
from planner.domain.stack_values import Zero12Upload

# DeepSpeed's own defaults, in elements.  Source: DeepSpeed 0.19.8 runtime/zero/config.py.
_REDUCE_BUCKET = 500_000_000
_PREFETCH_BUCKET = 50_000_000
_PERSISTENCE = 100_000
_FP32 = 4
_ALIGNED_BYTES = 16
# What "auto" stands for in transformers 5.23 integrations/deepspeed.py trainer_config_finalize.
_PREFETCH_SHARE = 0.9
_PERSISTENCE_WIDTHS = 10


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How DeepSpeed keeps what it offloads: what is pinned,
    and how stages 1 and 2 send updated weights back.
    """

    pins: bool
    pins_masters: bool
    upload: Zero12Upload


@dataclass(frozen=True, slots=True)
class ZeroSettings:
    """A DeepSpeed run.  Sizes in elements; ``element_bytes`` is of the engine's dtype,
    ``world`` the number of processes.  ``waits_for_copies``: stage 3 waits for each gradient's copy to an
    offloaded optimizer.  ``casts_on_host``, ``hooks_into_copies``, ``counts_early``,
    ``keeps_recomputed``: see the switches ``zero3_casts_on_host``, ``zero3_hooks_into_copies``,
    ``zero3_counts_from_backward`` and ``zero3_keeps_recomputed``; ``for_model``: until all of the model is
    done.  ``checks_overflow``: gradients are in fp16, and looked through for overflow before each step.
    ``flattens_below``: trained weights become one buffer on the card where twice their bytes are no more than
    this, else on the host; ``None``: always on the card.
    ``begins_empty``: the Trainer empties the cache before the engine is made.  ``makes_graph``: the forward
    pass leaves a graph, as it does not where layers are checkpointed in the reentrant manner.
    ``untied_elements``: of a head that is divided before it is tied; 0 for none.

    ``rank`` is the process that is traced.
    """

    stage: int
    world: int
    element_bytes: int
    bucket_elements: int
    overlaps: bool
    accumulates: bool
    offloads_optimizer: bool
    offloads_params: bool
    host: HostSettings
    quantized: bool
    waits_for_copies: bool
    casts_on_host: bool
    hooks_into_copies: bool
    counts_early: bool
    keeps_recomputed: bool
    for_model: bool
    makes_graph: bool
    checks_overflow: bool
    flattens_below: int | None
    begins_empty: bool
    untied_elements: int
    prefetch_elements: int
    persistence_elements: int
    max_live_elements: int
    max_reuse_elements: int
    sub_group_elements: int
    rank: int

    def flattens_on_card(self, trained_bytes: int) -> bool:
        """Whether the card has room for the buffer beside the weights (stage_1_and_2.py
        ``flatten_on_accelerator``).
        """
        return self.flattens_below is None or 2 * trained_bytes <= self.flattens_below


@dataclass(frozen=True, slots=True)
class FsdpSettings:
    """An FSDP2 run: every parameter is divided over ``shards`` processes along its first dimension, padded.

    ``mixed``: shards are cast to 16-bit to be gathered.  ``quantized``: the base is of k-bit matrices, and
    whole on every GPU before it is divided.  ``loads_each_name``: a tied parameter is loaded once for each of
    its modules.  ``reduces_last_only``: gradients of a micro-step that is not the last stay whole.
    ``reduces_fp32``: 16-bit gradients are reduced in fp32.  ``replicates``: the shards of a node are repeated
    on others.  ``halves_differ``: weights are stored in one 16-bit dtype and computed with in the other.
    """

    shards: int
    mixed: bool
    quantized: bool
    offloads: bool
    loads_each_name: bool
    reduces_last_only: bool
    reduces_fp32: bool
    widens: bool
    replicates: bool
    reshards_after_forward: bool
    halves_differ: bool = False

    def casts(self, parameter: TracedParameter) -> bool:
        """Whether a shard is cast to be gathered (torch 2.13 _fsdp_param.py ``_to_dtype_if_needed``)."""
        stored = self.stored_bytes(parameter)
        return stored != parameter.element_bytes or (self.halves_differ and stored < _FP32)

    def stored_bytes(self, parameter: TracedParameter) -> int:
        """Bytes of each element of a shard: fp32 where it is trained in mixed precision,
        unless the base is of 4-bit matrices.

        Source: accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model,
        which upcasts trained 16-bit parameters; axolotl 0.19.0 monkeypatch/accelerate/fsdp2.py does not.
        """
        if not self.mixed:
            return parameter.element_bytes
        widens = self.widens and parameter.trained and not self.quantized
        return _FP32 if widens else parameter.stored_bytes

    def reduced_bytes(self, parameter: TracedParameter) -> int:
        """Bytes of each element of a gradient on its way to the others."""
        return _FP32 if self.reduces_fp32 else parameter.element_bytes

    def shard_shape(self, parameter: TracedParameter) -> tuple[int, ...]:
        """Shape of the padded shard, which is that of rank 0.  Source: torch 2.13 _fsdp_param.py
        (``padded_sharded_size``).
        """
        rows, *rest = parameter.shape
        return (-(-rows // self.shards), *rest)

    def shard_elements(self, parameter: TracedParameter) -> int:
        """Elements of the padded shard."""
        return math.prod(self.shard_shape(parameter))


def fsdp_settings(scenario: Scenario) -> FsdpSettings:
    """The settings of an FSDP2 scenario, with ``fsdp_no_sync`` and ``fsdp_reduces_fp32`` of its stack."""
    recipe, hardware = scenario.recipe, scenario.hardware
    hybrid = recipe.sharding.scope == "node"
    return FsdpSettings(
        shards=int(recipe.sharding.shards(hardware)),
        mixed=recipe.numerics.mixed,
        quantized=recipe.numerics.quantization != "none",
        offloads=recipe.offloads_params,
        loads_each_name=scenario.stack.model_code != "own",
        reduces_last_only=int(recipe.batch.grad_accum) > 1
        and recipe.sharding.reduces_last_only(scenario.stack.fsdp_no_sync),
        reduces_fp32=scenario.stack.fsdp_reduces_fp32,
        widens=scenario.stack.fsdp2_widens,
        replicates=hybrid and int(hardware.nodes) > 1,
        reshards_after_forward=recipe.sharding.divides_weights,
        halves_differ=recipe.numerics.mixed
        and {recipe.numerics.load_dtype, recipe.numerics.compute_dtype} == {"bf16", "fp16"},
    )


@dataclass(frozen=True, slots=True)
class FlatSettings:
    """An FSDP1 run: the parameters of a unit are one flat tensor, divided over ``shards`` processes.

    ``mixed``, ``quantized``, ``reduces_last_only``, ``replicates``, ``reshards_after_forward``,
    ``halves_differ``: as of :class:`FsdpSettings`.  ``aligned_elements``: parameters begin at multiples of
    it.  ``prefetches``: the unit before is sent for when a backward begins.
    """

    shards: int
    mixed: bool
    quantized: bool
    offloads: bool
    reduces_last_only: bool
    replicates: bool
    reshards_after_forward: bool
    aligned_elements: int
    prefetches: bool
    halves_differ: bool = False


def flat_settings(scenario: Scenario) -> FlatSettings:
    """The settings of an FSDP1 scenario, with what begins with ``fsdp1_`` of its stack.

    Source: torch 2.13 distributed/fsdp/_flat_param.py _get_aligned_numel (``use_orig_params``).
    """
    recipe, stack = scenario.recipe, scenario.stack
    width = DTYPE_BYTES[recipe.numerics.compute_dtype] if recipe.numerics.mixed else _FP32
    both = fsdp_settings(scenario)
    return FlatSettings(
        both.shards,
        both.mixed,
        both.quantized,
        both.offloads,
        both.reduces_last_only,
        both.replicates,
        both.reshards_after_forward,
        aligned_elements=1 if stack.fsdp1_flat else _ALIGNED_BYTES // width,
        prefetches=stack.fsdp1_prefetches,
        halves_differ=both.halves_differ,
    )


def makes_buckets_early(scenario: Scenario) -> bool:
    """Whether stage 1 or 2 makes its buckets before the loss runs backward, as DeepSpeed does up to 0.18.2.

    Source: the switch ``zero12_early_buckets`` of the stack's DeepSpeed version,
    with its places in DeepSpeed.
    """
    return scenario.recipe.sharding.is_zero12 and scenario.stack.zero12_early_buckets


def reference_settings(scenario: Scenario) -> ZeroSettings:
    """Those of the engine of a second model: nobody fills in what is ``auto`` for it,
    so that DeepSpeed's own values hold.

    Source: trl 0.15.2 and 1.16.0 models/utils.py prepare_deepspeed; DeepSpeed 0.19.8 runtime/config_utils.py.
    """
    stack = replace(scenario.stack, zero_auto_buckets=False)
    return zero_settings(replace(scenario, stack=stack))


def _zero3_sizes(stack: Stack, width: int) -> tuple[int, int, int]:
    """Elements of the bucket, of the prefetch bucket and of the largest parameter that stays whole, where
    hidden states have ``width``.
    """
    usual = (_REDUCE_BUCKET, _PREFETCH_BUCKET, _PERSISTENCE)
    if stack.zero_auto_buckets:
        usual = (width * width, int(_PREFETCH_SHARE * width * width), _PERSISTENCE_WIDTHS * width)
    given = (stack.zero3_bucket_elements, stack.zero3_prefetch_elements, stack.zero3_persistence_elements)
    bucket, prefetch, persistence = (
        number if said < 0 else said for said, number in zip(given, usual, strict=True)
    )
    return bucket, prefetch, persistence


def zero_settings(scenario: Scenario) -> ZeroSettings:
    """The settings of a DeepSpeed scenario, as the Trainer finishes them with the bucket sizes of the stack.

    Source: transformers 5.23 integrations/deepspeed.py trainer_config_finalize; DeepSpeed 0.19.8
    runtime/zero/config.py; the switches ``zero_auto_buckets``,
    ``zero12_bucket_elements``, ``zero12_overlap``, ``zero12_upload``, ``zero12_flattens_on_gpu``; those of
    ``zero3_`` hold the numbers of a file, where it has any.
    """
    recipe, stack = scenario.recipe, scenario.stack
    stage, width = recipe.sharding.zero_stage, scenario.model.hidden_size
    bucket, prefetch, persistence = _zero3_sizes(stack, width)
    if stage != 3:
        bucket = stack.zero12_bucket_elements or width * width
    world = int(scenario.hardware.world_size)
    return ZeroSettings(
        stage=stage,
        world=world,
        rank=world - 1,
        element_bytes=DTYPE_BYTES[recipe.numerics.compute_dtype] if recipe.numerics.mixed else 4,
        bucket_elements=bucket,
        overlaps=stack.zero3_overlap if stage == 3 else stack.zero12_overlap,
        accumulates=int(recipe.batch.grad_accum) > 1,
        offloads_optimizer=recipe.offloads_optimizer,
        offloads_params=recipe.offloads_params,
        quantized=recipe.numerics.quantization != "none",
        waits_for_copies=recipe.offloads_optimizer and stack.zero3_waits_for_copies,
        casts_on_host=stack.zero3_casts_on_host,
        hooks_into_copies=stack.zero3_hooks_into_copies,
        counts_early=stack.zero3_counts_from_backward,
        keeps_recomputed=stack.zero3_keeps_recomputed,
        for_model=recipe.checkpoint_reentrant and stack.recomputes_hooks,
        makes_graph=not (recipe.gradient_checkpointing and recipe.checkpoint_reentrant),
        checks_overflow=recipe.numerics.precision == "fp16-mixed",
        flattens_below=scenario.hardware.gpu.visible_memory_bytes if stack.zero12_flattens_on_gpu else 0,
        begins_empty=stack.runs_trainer,
        untied_elements=int(scenario.model.token_embedding.param_count) if scenario.model.tied else 0,
        host=HostSettings(
            stack.pins_offload,
            stack.pins_masters == "always" or (stack.pins_masters == "as_set" and stack.pins_offload),
            stack.zero12_upload,
        ),
        prefetch_elements=prefetch,
        persistence_elements=persistence,
        max_live_elements=stack.zero3_live_elements,
        max_reuse_elements=stack.zero3_reuse_elements,
        sub_group_elements=stack.zero3_sub_group_elements,
    )
