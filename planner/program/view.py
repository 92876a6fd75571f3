"""What decides the operators of a layer: its shapes, the method, dtypes, and the software that runs it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from planner.anatomy.adapted_matrices import is_adapted, is_merged
from planner.anatomy.quantized_matrices import is_quantizable
from planner.anatomy.regime import Regime, frozen_regime
from planner.anatomy.trained_parts import parts_of
from planner.domain.model import BlockSpec, LinearSpec
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS, FLASH_WIDEST
from planner.domain.recipes.fp8_scaling import Scaling, scaling_of
from planner.domain.recipes.recipe import Number, Offload, Recipe
from planner.domain.stack import Stack
from planner.intake.supported import groups_products, lacks_flash2, runs_deepgemm
from planner.program.job import Job
from planner.program.ops.tensors import Dtype

MASK_KEYS = 16
"""A mask's rows are padded to a multiple of so many keys."""


@dataclass(frozen=True, slots=True)
class Dtypes:
    """The dtype of each kind of tensor.

    ``compute``: of matrix products; ``base``: weights of layers that are not quantised; ``table``: token
    table and head; ``norm``: weights of norms; ``adapter``: LoRA matrices as their layers see them.
    ``autocast``: whether autocast casts the inputs of products.  ``wide_adapter_input``: whether PEFT casts
    the input of an adapter to fp32 all the same, beside a base that is not quantised.
    """

    compute: Dtype
    base: Dtype
    table: Dtype
    norm: Dtype
    adapter: Dtype
    autocast: bool
    wide_adapter_input: bool = False


def dtypes_of(regime: Regime, recipe: Recipe) -> Dtypes:
    """The dtypes that a recipe leads to."""
    numerics = recipe.numerics
    engine_casts = regime.engine != "native" and numerics.mixed
    narrow: Dtype = (
        numerics.compute_dtype if engine_casts or numerics.load_dtype == "fp32" else numerics.load_dtype
    )
    seen = numerics.compute_dtype if regime.engine == "fsdp" and numerics.mixed else None

    def named(n_bytes: int) -> Dtype:
        return seen or ("fp32" if n_bytes == 4 else narrow)

    adapter: Dtype = "fp32" if regime.adapter_seen == 4 else numerics.compute_dtype
    if recipe.adapter and regime.adapter_seen == 2 and not engine_casts:
        adapter = recipe.adapter.dtype
    in_base = not regime.autocast and not engine_casts and not regime.quantized
    compute: Dtype = named(regime.base) if in_base else numerics.compute_dtype
    return Dtypes(
        compute,
        named(regime.base),
        named(regime.token_table),
        named(regime.norm_weight),
        adapter,
        regime.autocast,
        regime.sees_adapter_shards,
    )


@dataclass(frozen=True, slots=True)
class LayerView:
    """One kind of layer under one job.

    ``masked``: SDPA gets a mask, because of padding or of a window that the sequence reaches.  ``single``: a
    micro-batch is one sample, so that heads are batches of products without a copy; ``single_chosen``: one
    pair.  ``trains_base``: whether the layer's own weights are trained; ``trains_mlp_only``: of those, only
    the matrices of the feed-forward part.  ``embedded``: dtype of embeddings, and with them of tables of
    rotary positions.
    ``narrow``: how Transformer Engine casts to 8 bits.
    ``has_flash``: the card runs torch's FlashAttention.  ``unpads``: FlashAttention gets no padding, which
    code of Transformers takes out before and puts back behind.  ``ranks``: whose tokens go to the experts of
    one.  ``has_deepgemm``: products with stored fp8 matrices are DeepGEMM's.  ``groups_products``: the card
    has a kernel of bf16 products for all experts.
    ``recipe``: without sizes and whatever else no operator of a layer asks for, so that layers that
    run alike are equal.
    """

    block: BlockSpec
    dtypes: Dtypes
    recipe: Recipe
    stack: Stack
    has_quantized: bool
    masked: bool
    single: bool
    single_chosen: bool
    trains_base: bool
    embedded: Dtype
    trains_mlp_only: bool = False
    pads_mask: bool = False
    has_flash: bool = True
    unpads: bool = False
    ranks: int = 1
    narrow: Scaling | None = None
    has_deepgemm: bool = False
    groups_products: bool = True

    def __hash__(self) -> int:
        """Hash of a few fields: equality still compares all, and lookups in caches stay cheap."""
        recipe = self.recipe
        run = (
            recipe.method,
            recipe.gradient_checkpointing,
            recipe.attention,
            recipe.loss,
            recipe.sharding.name,
        )
        return hash((self.stack.id, self.block, self.dtypes, self.masked, self.single, self.trains_base, run))

    def adapted(self, linear: LinearSpec) -> bool:
        """Whether LoRA adapts this matrix."""
        adapter = self.recipe.adapter
        return adapter is not None and is_adapted(linear, adapter.targets)

    def quantized(self, linear: LinearSpec) -> bool:
        """Whether this matrix is stored in 8 or 4 bits."""
        return self.has_quantized and is_quantizable(linear, self.stack.passes_over)

    def merged(self, linear: LinearSpec) -> bool:
        """Whether the adapter is added to the weight itself."""
        adapter = self.recipe.adapter
        return adapter is not None and is_merged(linear, adapter.targets, self.stack)

    def product_dtype(self, dtype: Dtype) -> Dtype:
        """The dtype of a product of what has ``dtype``: autocast casts both factors."""
        return self.dtypes.compute if self.dtypes.autocast else dtype

    @property
    def in_ring(self) -> bool:
        """Whether torch's ring divides each sequence: that of the Trainer beside FSDP2, of torchtitan with
        torch's fused attention.
        """
        if self.recipe.parallel.context == 1 or self.recipe.uses_deepspeed:
            return False
        by_tokens = self.stack.model_parallel == "tokens" and self.recipe.attention == "sdpa"
        return by_tokens or self.stack.model_parallel == "features"

    @property
    def by_autotp(self) -> bool:
        """Whether DeepSpeed divides matrices: it sums in place, and each GPU has the whole token table.

        Source: deepspeed 0.19.8 module_inject/layers.py LinearAllreduce, LinearLayer, module_inject/
        tp_plan_converter.py.
        """
        return self.recipe.parallel.tensor > 1 and self.recipe.uses_deepspeed

    @property
    def uses_local_parts(self) -> bool:
        """Whether Transformers divides matrices, and without a graph takes their parts as plain tensors
        (transformers 5.23 distributed/tensor_parallel.py transform_inputs_pre_forward).
        """
        divides = self.recipe.parallel.tensor > 1 and self.stack.model_parallel == "features"
        return divides and self.stack.fsdp2_casts != "always" and not self.by_autotp

    @property
    def wraps_parts(self) -> bool:
        """Whether checkpointing wraps the norms,
        the attention and the MLP one by one instead of the layer.
        """
        return self.recipe.gradient_checkpointing and self.stack.checkpoints_parts

    @property
    def wraps_parts_again(self) -> bool:
        """Whether checkpointing wraps them inside of the layer that it wraps, too."""
        return self.recipe.gradient_checkpointing and self.stack.checkpoints_twice

    def linears(self, reads: str) -> list[LinearSpec]:
        """The matrices that read one tensor, in the order of the code;
        routers and bare parameters of them left out.
        """
        bare = ("router", "parameter")
        return [
            spec for spec in self.block.linears if spec.reads == reads and (spec.group, spec.kind) != bare
        ]


def pads_mask(keys: Number) -> bool:
    """Whether the rows of a mask over so many keys are no multiple of the kernel's alignment; in a grid:
    any.
    """
    uneven: Any = keys % MASK_KEYS != 0
    return uneven if isinstance(uneven, bool) else bool(uneven.any())


def layer_view(job: Job, block: BlockSpec, *, trained: bool, mlp_only: bool = False) -> LayerView:
    """One kind of layer of ``job``; ``trained``: whether its own weights are; ``mlp_only``:
    those of its feed-forward part.
    """
    full = job.recipe.method == "full"

    def dtypes(*, trained: bool) -> Dtypes:
        return dtypes_of(
            job.regime if trained or not full else frozen_regime(job.regime, job.recipe), job.recipe
        )

    recipe, stack = _of_heads(job, block)
    return LayerView(
        block,
        dtypes(trained=trained),
        _of_layers(recipe),
        stack,
        job.regime.quantized,
        _is_masked(job, block, recipe, stack),
        job.single,
        job.single_chosen,
        trained,
        dtypes(trained="embed" in parts_of(job.model, job.recipe).ends).table,
        mlp_only,
        has_flash=not lacks_flash2(job.hardware.gpu),
        narrow=scaling_of(job.recipe.numerics, job.hardware.gpu),
        unpads=_unpads(job, recipe, stack),
        ranks=1 if stack.host_experts == "none" else int(job.hardware.world_size),
        pads_mask=block.attention.has_sloped_mask and pads_mask(job.recipe.batch.seq_len),
        has_deepgemm=recipe.numerics.quantization == "fp8" and runs_deepgemm(job.hardware.gpu),
        groups_products=groups_products(job.hardware.gpu),
    )


def _unpads(job: Job, recipe: Recipe, stack: Stack) -> bool:
    of_rows = job.recipe.batch.is_padded and not job.single
    return of_rows and recipe.attention == "flash2" and stack.model_code.startswith("transformers")


def _is_masked(job: Job, block: BlockSpec, recipe: Recipe, stack: Stack) -> bool:
    # Prompts are padded to the longest of all that are generated at once.
    batch, generates = job.recipe.batch, job.recipe.rollout is not None
    padded = (batch.is_padded if generates else stack.masks_padding(batch)) or stack.guesses_tokens
    return padded or stack.masks_samples(recipe) or job.needs_mask(block)


def head_view(job: Job, view: LayerView) -> LayerView:
    """``view`` with the dtype of the head, which adapters may train a copy of."""
    adapter, regime = job.recipe.adapter, job.regime
    if adapter is None:
        return view
    saved = job.model.head.name in adapter.saved_names
    seen = replace(regime, token_table=regime.copied if saved else regime.outside)
    return replace(view, dtypes=replace(view.dtypes, table=dtypes_of(seen, job.recipe).table))


def tower_view(job: Job, block: BlockSpec, *, trained: bool) -> LayerView:
    """The same for a part of a vision tower, which gets no mask,
    and no kernels that stacks write for language models.
    """
    view = layer_view(job, block, trained=trained)
    return replace(
        view,
        masked=False,
        single=False,
        unpads=False,
        stack=replace(view.stack, fused_mlp=False, adapter_kernels="eager"),
    )


def _of_heads(job: Job, block: BlockSpec) -> tuple[Recipe, Stack]:
    """What runs the attention of one kind of layer."""
    wide = job.stack.masks_wide_heads and block.attention.head_dim > FLASH_WIDEST
    if not (wide and ATTENTION_FACTS[job.recipe.attention].is_flash):
        return job.recipe, job.stack
    return replace(job.recipe, attention="sdpa"), replace(job.stack, packed_mask="rows")


def _of_layers(recipe: Recipe) -> Recipe:
    offload: Offload = "activations" if recipe.offloads_activations else "none"
    rollout = replace(recipe.rollout, reward=None) if recipe.rollout else None
    return replace(
        recipe.without_sizes,
        rollout=rollout,
        teacher=None,
        train_layers=(),
        optimizer="sgd",
        offload=offload,
        checkpoint_every=1,
    )
