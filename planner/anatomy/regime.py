"""Which dtype every kind of tensor really has, once method, stack and engine have had their say.

Most gigabyte-sized surprises are decided here: an fp32 residual stream doubles what checkpointing stores,
fp32 norms feed fp32 inputs to k-bit layers, an engine halves what k-bit preparation upcast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.anatomy.quantized_matrices import has_quantizable
from planner.domain.recipes.recipe import DTYPE_BYTES, STAYS_16_BIT, Recipe
from planner.domain.recipes.sharding import NONE, Engine
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack


@dataclass(frozen=True, slots=True)
class Regime:
    """Bytes per element of each kind of tensor on the GPU.

    ``base``: frozen or trained weight matrices inside blocks that are not quantised.  ``outside``: token
    table and head; ``copied``: trained copies of modules (``modules_to_save``); ``token_table``: the table
    that tokens are looked up in, a copy or not.  ``norm_weight``: weights of norms.  ``compute``: matrix
    products.  ``residual``: the stream between blocks.  ``norm_out``: what norms hand to matrices.
    ``linear_out``: what the base matrices of a block return.  ``trained``: the trained tensors on the GPU;
    ``gradient``: their gradients (16-bit under DeepSpeed's 16-bit engine, whatever the tensors are);
    ``master``: separate fp32 masters (0: none); ``state``: each element of an unquantised optimizer state.
    ``adapter``: adapters as they are kept; ``adapter_seen``: as their layers see them, which FSDP gathers in
    the compute dtype (torch 2.13 distributed/fsdp MixedPrecisionPolicy ``param_dtype``, set by accelerate
    1.15).  ``sees_adapter_shards``: PEFT reads their dtype from shards in fp32, and casts their input to it,
    because FSDP1 gathers each behind that, as a unit.  Source: peft 0.21 tuners/lora/layer.py Linear.forward,
    ``_cast_input_dtype``; torch 2.13 distributed/fsdp _runtime_utils.py _pre_forward, which casts it again.
    """

    engine: Engine
    autocast: bool
    quantized: bool
    base: int
    outside: int
    copied: int
    token_table: int
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
    sees_adapter_shards: bool

    @property
    def is_wide(self) -> bool:
        """Whether all but k-bit products run in fp32: the stream was widened, and no autocast narrows it."""
        widened = self.quantized and self.linear_out == WIDE_BYTES > self.compute
        return widened and not self.autocast and self.engine == "native"


_KEEPS_MASTERS: tuple[Engine, ...] = ("deepspeed", "megatron-core")
WIDE_BYTES = 4
"""Bytes of one element in fp32."""


def regime_of(scenario: Scenario) -> Regime:
    """The dtype regime of a scenario: under an FSDP2 that casts nothing, that of one process alone."""
    recipe, stack, model = scenario.recipe, scenario.stack, scenario.model
    if stack.fsdp2_casts == "never":
        recipe = replace(recipe, sharding=NONE)
    # In some models the quantiser finds no matrix to quantise.
    packs = recipe.numerics.quantization != "none" and has_quantizable(model, stack.passes_over)
    norms = [norm.kind for norm in model.groups[0].block.norms if norm.on == "hidden"]
    saved = recipe.adapter is not None and model.token_embedding.name in recipe.adapter.saved_names
    regime = _regime(recipe, stack, packs, (*norms, "rms")[0], copies_table=saved)
    # Autocast runs a layer norm in fp32, so one over the embeddings starts an fp32 stream.
    widens = model.embedding_norm and regime.autocast
    return replace(regime, residual=4) if widens and regime.residual < 4 else regime


def frozen_regime(regime: Regime, recipe: Recipe) -> Regime:
    """The regime of what a full fine-tune leaves untrained, whose weights stay as they were loaded.

    Source: llamafactory 0.9.5 model/adapter.py _setup_freeze_tuning, which widens trained weights alone;
    axolotl 0.19.0 loaders/model.py _configure_embedding_dtypes, which widens ends before it freezes.
    DeepSpeed's 16-bit engine casts the whole module, frozen weights with it: deepspeed 0.19.8
    runtime/engine.py _cast_module_mixed_precision.
    """
    if regime.engine == "deepspeed" and recipe.numerics.mixed:
        return regime
    load = DTYPE_BYTES[recipe.numerics.load_dtype]
    if regime.outside > regime.base:
        return replace(regime, base=load)
    return replace(regime, base=load, outside=load, token_table=load, norm_weight=load)


def _regime(recipe: Recipe, stack: Stack, quantized: bool, norm_kind: str, *, copies_table: bool) -> Regime:
    engine, numerics, is_lora = recipe.sharding.engine, recipe.numerics, recipe.method == "lora"
    compute = DTYPE_BYTES[numerics.compute_dtype]
    autocast = _is_under_autocast(recipe, stack)
    base, outside, norm_weight = _weight_bytes(recipe, stack)
    # FSDP gathers weights in the compute dtype: inside blocks all is 16-bit although shards are fp32.
    gathers = engine == "fsdp" and numerics.mixed
    trained = _trained_bytes(recipe, base, casts=quantized or stack.zero3_casts_adapters)
    copied = trained if _widens_copies(stack, engine) else outside
    token_table = copied if copies_table else outside
    seen_outside, seen_norm = (compute, compute) if gathers else (token_table, norm_weight)
    if autocast and outside == compute == 2 and numerics.load_dtype != numerics.compute_dtype:
        # Adding a product to the stream makes that fp32: fp16 and bf16 have no common 16-bit type.
        seen_outside = 4
    norm_out = max(seen_norm, seen_outside) if norm_kind == "rms" else (4 if autocast else seen_outside)
    plain_out = compute if autocast or engine != "native" else base
    linear_out = _linear_out(recipe, stack, norm_out) if quantized else plain_out
    # The stream starts in the table's dtype and is widened by the first addition of a wider block output.
    residual = max(seen_outside, linear_out) if quantized else seen_outside
    return Regime(
        engine=engine,
        autocast=autocast,
        quantized=quantized,
        base=base,
        outside=outside,
        copied=copied,
        token_table=token_table,
        norm_weight=norm_weight,
        compute=compute if quantized else plain_out,
        residual=residual,
        norm_out=norm_out,
        linear_out=linear_out,
        trained=trained,
        gradient=compute if engine == "deepspeed" and numerics.mixed else trained,
        master=4 if engine in _KEEPS_MASTERS and (trained < 4 or _divides_fp32(recipe, stack)) else 0,
        state=4 if engine in _KEEPS_MASTERS else trained,
        adapter=trained if is_lora else 0,
        adapter_seen=(compute if gathers else trained) if is_lora else 0,
        sees_adapter_shards=is_lora and gathers and recipe.sharding.is_fsdp1 and stack.fsdp1_wraps_adapters,
    )


def _is_under_autocast(recipe: Recipe, stack: Stack) -> bool:
    """DeepSpeed's 16-bit engine and FSDP's mixed precision cast the module itself, without autocast.

    But Accelerate puts a model under it before FSDP1 wraps that: 1.15 accelerator.py prepare_model
    (``native_amp``).
    """
    sharding = recipe.sharding
    casts = sharding.engine == "native" or (sharding.is_fsdp1 and stack.runs_trainer)
    return recipe.numerics.mixed and casts


def _widens_copies(stack: Stack, engine: Engine) -> bool:
    """Whether trained copies of modules become as wide as adapters.

    DeepSpeed's engine casts them back, and under ZeRO-3 they are left as they are.
    """
    return stack.widens_copies and stack.trainable_fp32 and engine != "deepspeed"


def _divides_fp32(recipe: Recipe, stack: Stack) -> bool:
    """Whether ZeRO-3 divides fp32 weights under an engine that casts to 16 bits: it copies them as masters
    all the same, and what it casts are the empty stand-ins of divided weights.

    Source: deepspeed 0.18.9 runtime/zero/partition_parameters.py ``_set_dtype`` and runtime/engine.py
    _configure_distributed_model; measure trace of axolotl 0.19.0 with its zero3.json.
    """
    divided = stack.zero3_divides_fp32 and recipe.sharding.engine == "deepspeed"
    return divided and recipe.numerics.mixed and recipe.numerics.quantization == "none"


def _linear_out(recipe: Recipe, stack: Stack, norm_out: int) -> int:
    """Bytes per element of what a k-bit matrix returns: the dtype of its input.

    int8 layers since bitsandbytes 0.45 add the outliers' part by ``addmm``, which autocast runs and returns
    in 16 bits; before, they added in place.  That some column holds an outlier is assumed; of inputs without
    any, the result has the input's dtype.
    Source: bitsandbytes 0.50 backends/default/ops.py ``int8_mixed_scaled_mm``, 0.41.3 autograd/_functions.py.
    """
    in_place, numerics = stack.int8_keeps_quantized_input, recipe.numerics  # both ended with 0.45
    adds = numerics.quantization == "int8" and numerics.mixed and recipe.sharding.engine == "native"
    return DTYPE_BYTES[numerics.compute_dtype] if adds and not in_place else norm_out


def _weight_bytes(recipe: Recipe, stack: Stack) -> tuple[int, int, int]:
    """Bytes per element of block matrices, of token table and head, and of norm weights."""
    numerics, engine = recipe.numerics, recipe.sharding.engine
    load, compute = DTYPE_BYTES[numerics.load_dtype], DTYPE_BYTES[numerics.compute_dtype]
    if _divides_fp32(recipe, stack):
        return WIDE_BYTES, WIDE_BYTES, WIDE_BYTES
    halves = numerics.quantization == "none" or stack.engine_halves_kbit
    if engine == "deepspeed" and numerics.mixed and halves:
        return compute, compute, compute
    if recipe.method == "full":
        widens = engine == "fsdp" and numerics.mixed
        widens = widens and (stack.fsdp2_widens or not recipe.sharding.dtensors)
        trained = 4 if stack.trainable_fp32 or widens else load
        ends = 4 if stack.widens_ends and engine == "native" else trained
        return trained, ends, ends
    if numerics.quantization == "none" and stack.prepares_unquantized:
        return 4, 4, 4
    upcast = stack.kbit_upcast_over(recipe)
    if numerics.quantization in STAYS_16_BIT | {"none"} or upcast == "none":
        return load, load, load
    # PEFT's preparation also turns what quantisers leave inside blocks to fp32: biases, routers,
    # fused experts.
    outside = 4 if upcast == "all" else load
    return (4 if upcast == "layers" else outside), outside, (load if upcast == "layers" else 4)


def _trained_bytes(recipe: Recipe, base: int, *, casts: bool) -> int:
    """Bytes per element of trained tensors.

    DeepSpeed's 16-bit engine casts what zero.Init has not divided: everything under stages 0 to 2, and a
    k-bit model under stage 3, which Transformers loads without zero.Init; until 0.19.1 other adapters, too
    (``casts``), which since then stay as PEFT made them.
    Source: DeepSpeed 0.19.8 runtime/engine.py _cast_module_mixed_precision; transformers 5.23
    modeling_utils.py get_init_context.
    """
    if recipe.method == "full":
        return base
    adapter, numerics = DTYPE_BYTES[recipe.adapter.dtype if recipe.adapter else "fp32"], recipe.numerics
    if recipe.sharding.engine == "deepspeed" and numerics.mixed and (recipe.sharding.is_zero012 or casts):
        return min(adapter, DTYPE_BYTES[numerics.compute_dtype])
    return adapter
