"""Which dtype every kind of tensor really has, once method, stack and engine have had their say.

Most gigabyte-sized surprises are decided here: an fp32 residual stream doubles what checkpointing stores,
fp32 norms feed fp32 inputs to k-bit layers, an engine halves what k-bit preparation upcast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from planner.anatomy.quantized_matrices import has_quantizable
from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import DTYPE_BYTES, STAYS_16_BIT, Numerics, Recipe
from planner.domain.recipes.sharding import Engine, Sharding
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack


@dataclass(frozen=True, slots=True)
class Regime:
    """Bytes per element of each kind of tensor on the GPU.

    ``base``: frozen or trained weight matrices inside blocks that are not quantised.  ``outside``: token
    table and head.  ``norm_weight``: weights of norms.  ``compute``: matrix products.  ``residual``: the
    stream between blocks.  ``norm_out``: what norms hand to matrices.  ``linear_out``: what the base matrices
    of a block return.  ``trained``: the trained tensors on the GPU; ``gradient``: their gradients (16-bit
    under DeepSpeed's 16-bit engine, whatever the tensors are); ``master``: separate fp32 masters (0: none);
    ``state``: each element of an unquantised optimizer state.  ``adapter``: adapters as they are kept;
    ``adapter_seen``: as their layers see them, which FSDP gathers in the compute dtype.
    """

    engine: Engine
    autocast: bool
    quantized: bool
    base: int
    outside: int
    norm_weight: int
    compute: int
    residual: int
    norm_out: int
    linear_out: int
    trained: int
    gradient: int
    master: int
    state: int
    adapter: int
    adapter_seen: int

    @property
    def is_wide(self) -> bool:
        """Whether all but k-bit products run in fp32: preparation widened the stream,
        and no autocast narrows what reads it.
        """
        return (
            self.quantized
            and self.linear_out == WIDE_BYTES > self.compute
            and not self.autocast
            and self.engine == "native"
        )


WIDE_BYTES = 4
"""Bytes of one element in fp32."""


def regime_of(scenario: Scenario) -> Regime:
    """The dtype regime of a scenario."""
    recipe = scenario.recipe
    adapter_dtype = recipe.adapter.dtype if recipe.adapter else None
    packs = recipe.numerics.quantization != "none" and has_quantizable(
        scenario.model, scenario.stack.skips_experts
    )
    key = _Key(
        recipe.method, recipe.numerics, recipe.sharding, adapter_dtype, recipe.offloads_optimizer, packs
    )
    regime = _regime(key, scenario.stack, _first_norm_kind(scenario.model))
    # Autocast runs a layer norm in fp32, so one over the embeddings starts an fp32 stream.
    widens = scenario.model.embedding_norm and regime.autocast
    return replace(regime, residual=4) if widens and regime.residual < 4 else regime


def frozen_regime(regime: Regime, recipe: Recipe) -> Regime:
    """The regime of what a full fine-tune leaves untrained:
    weights stay in the dtype in which they were loaded.

    Source: llamafactory 0.9.5 model/adapter.py _setup_freeze_tuning, which widens trained weights alone;
    axolotl 0.19.0 loaders/model.py _configure_embedding_dtypes, which widens ends before it freezes.
    Ignored: engines, which are refused there.
    """
    load = DTYPE_BYTES[recipe.numerics.load_dtype]
    if regime.outside > regime.base:
        return replace(regime, base=load)
    return replace(regime, base=load, outside=load, norm_weight=load)


@dataclass(frozen=True, slots=True)
class _Key:
    """The categorical part of a recipe, hashable even when the numeric axes are arrays.

    ``packs`` says whether any matrix is really quantised: in some models the quantiser finds none.
    """

    method: str
    numerics: Numerics
    sharding: Sharding
    adapter_dtype: str | None
    offloads_optimizer: bool
    packs: bool


def _first_norm_kind(model: ModelSpec) -> str:
    hidden = [norm.kind for norm in model.groups[0].block.norms if norm.on == "hidden"]
    return hidden[0] if hidden else "rms"


@lru_cache(maxsize=512)
def _regime(key: _Key, stack: Stack, norm_kind: str) -> Regime:
    engine = key.sharding.engine
    numerics = key.numerics
    compute = DTYPE_BYTES[numerics.compute_dtype]
    quantized = key.packs
    # DeepSpeed's 16-bit engine and FSDP's mixed precision cast the module itself;
    # autocast belongs to the native engine.
    autocast = engine == "native" and numerics.mixed
    base, outside, norm_weight = _weight_bytes(key, stack, engine)
    # FSDP gathers weights in the compute dtype,
    # so inside the blocks everything is 16-bit although shards are fp32.
    gathers = engine == "fsdp" and numerics.mixed
    seen_outside, seen_norm = (compute, compute) if gathers else (outside, norm_weight)
    if autocast and outside == compute == 2 and numerics.load_dtype != numerics.compute_dtype:
        # fp16 and bf16 have no common 16-bit type:
        # the first addition of a product to the stream makes it fp32.
        seen_outside = 4
    norm_out = max(seen_norm, seen_outside) if norm_kind == "rms" else (4 if autocast else seen_outside)
    plain_out = compute if autocast or engine != "native" else base
    linear_out = _linear_out(key, stack, norm_out) if quantized else plain_out
    # The stream starts in the table's dtype and is widened by the first addition of a wider block output.
    residual = max(seen_outside, linear_out) if quantized else seen_outside
    trained = _trained_bytes(key, base, engine, compute, casts=stack.zero3_casts_adapters)
    return Regime(
        engine=engine,
        autocast=autocast,
        quantized=quantized,
        base=base,
        outside=outside,
        norm_weight=norm_weight,
        compute=compute if quantized else plain_out,
        residual=residual,
        norm_out=norm_out,
        linear_out=linear_out,
        trained=trained,
        gradient=compute if engine == "deepspeed" and numerics.mixed else trained,
        master=4 if engine == "deepspeed" and trained < 4 else 0,
        state=4 if engine == "deepspeed" else trained,
        adapter=trained if key.method == "lora" else 0,
        adapter_seen=_adapter_seen(key, trained, engine, compute),
    )


def _adapter_seen(key: _Key, trained: int, engine: Engine, compute: int) -> int:
    """Bytes per element of the adapters that PEFT's layers work with.

    Source: torch 2.13 distributed/fsdp MixedPrecisionPolicy (``param_dtype``),
    which accelerate 1.15 sets to the compute dtype.
    """
    if key.method != "lora":
        return 0
    return compute if engine == "fsdp" and key.numerics.mixed else trained


def _linear_out(key: _Key, stack: Stack, norm_out: int) -> int:
    """Bytes per element of what a k-bit matrix returns: the dtype of its input.

    int8 layers since bitsandbytes 0.45 add the outliers' part by ``addmm``, which autocast runs and returns
    in 16 bits; before, they added in place.  That some column holds an outlier is assumed; of inputs without
    any, the result has the input's dtype.
    Source: bitsandbytes 0.50 backends/default/ops.py ``int8_mixed_scaled_mm``, 0.41.3 autograd/_functions.py.
    """
    in_place = stack.int8_keeps_quantized_input  # what both did ended with 0.45
    adds = key.numerics.quantization == "int8" and key.numerics.mixed and key.sharding.engine == "native"
    return DTYPE_BYTES[key.numerics.compute_dtype] if adds and not in_place else norm_out


def _weight_bytes(key: _Key, stack: Stack, engine: Engine) -> tuple[int, int, int]:
    """Bytes per element of block matrices, of token table and head, and of norm weights."""
    numerics = key.numerics
    load = DTYPE_BYTES[numerics.load_dtype]
    compute = DTYPE_BYTES[numerics.compute_dtype]
    if engine == "deepspeed" and numerics.mixed:
        halved = numerics.quantization == "none" or stack.engine_halves_kbit
        if halved:
            return compute, compute, compute
    if key.method == "full":
        trained = 4 if stack.trainable_fp32 or (engine == "fsdp" and numerics.mixed) else load
        ends = 4 if stack.widens_ends and engine == "native" else trained
        return trained, ends, ends
    if numerics.quantization == "none" and stack.prepares_unquantized:
        return 4, 4, 4
    if numerics.quantization in STAYS_16_BIT | {"none"} or stack.kbit_upcast == "none":
        return load, load, load
    # PEFT's preparation also turns what quantisers leave inside blocks to fp32: biases, routers,
    # fused experts.
    rest = 4 if stack.kbit_upcast == "all" else load
    return rest, rest, 4


def _trained_bytes(key: _Key, base: int, engine: Engine, compute: int, *, casts: bool) -> int:
    if key.method == "full":
        return base
    adapter = DTYPE_BYTES[key.adapter_dtype or "fp32"]
    # DeepSpeed's 16-bit engine casts what zero.Init has not divided: everything under stages 0 to 2, and a
    # k-bit model under stage 3, which Transformers loads without zero.Init; until 0.19.1 other adapters, too,
    # which since then stay as PEFT made them.
    # Source: DeepSpeed 0.19.8 runtime/engine.py _cast_module_mixed_precision; transformers 5.23
    # modeling_utils.py get_init_context.
    if engine == "deepspeed" and key.numerics.mixed and (key.sharding.is_zero012 or key.packs or casts):
        return min(adapter, compute)
    return adapter
