"""What was given about the training recipe, filled up with what the stack does -> Recipe."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.hardware import GpuSpec, Hardware
from planner.domain.model import ModelSpec
from planner.domain.origin import ASSUMED, CATALOG
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS, Attention
from planner.domain.recipes.fp8 import GATHERED_FP8, Fp8
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS, Optimizer
from planner.domain.recipes.parallel import Parallel
from planner.domain.recipes.recipe import (
    BITSANDBYTES,
    LANGUAGE_TASKS,
    METHOD_ALIASES,
    TARGET_PARAMETER,
    TARGET_PATTERN,
    Adapter,
    CheckpointPolicy,
    Dtype,
    Loss,
    Method,
    Numerics,
    Offload,
    Packing,
    Precision,
    Quantization,
    Recipe,
    Task,
)
from planner.domain.recipes.sample_lengths import SampleLengths
from planner.domain.recipes.sharding import DDP, NONE, Sharding, sharding_named
from planner.domain.stack import Stack
from planner.errors import UsageError, show
from planner.intake.fill_batch import RecipeContext, resolve_batch
from planner.intake.fill_rollout import resolve_rollout
from planner.intake.given.fields import CHECKPOINT_DTYPE
from planner.intake.given.ledger import Ledger
from planner.intake.given.request import require
from planner.intake.images import resolve_frozen
from planner.intake.linears import failing_routers, linear_names_without, refused_by_peft, spelled_out
from planner.intake.model_parallel import (
    asks_to_divide,
    default_sharding,
    degrees,
    resolve_parallel,
)
from planner.intake.patterns import matched_targets
from planner.intake.supported import (
    GPU_ONLY_OPTIMIZERS,
    cannot_step,
    code_lacks,
    held_as,
    lacks_bf16,
    lacks_flash2,
    prefers_eager,
    takes_liger_loss,
    widest_head,
)
from planner.intake.tasks import keeps_dropout, takes_tiles
from planner.intake.train_layers import trained_parts

_VERA_RANK, _VERA = 256, "peft 0.21.2 tuners/vera/config.py VeraConfig"
_CHECKPOINT_NOTE = "the dtype of the checkpoint"
_SCALING_NOTE = "fp16 loss scaling refuses 16-bit trained weights"
_NO_CAST_NOTE = "without autocast a step computes in the dtype of its weights"


def resolve_recipe(
    ledger: Ledger, model: ModelSpec, hardware: Hardware, stack: Stack, lengths: SampleLengths | None = None
) -> Recipe:
    """Recipe of the job; every value is entered in ``ledger``.  ``lengths``: those of the data set if read.

    Raises:
        UsageError: something that has no default was not given.
        NotModelledError: the same of a record.
    """
    require(ledger.request, "recipe")
    task: Task = ledger.choose("task", "sft", "assumed")
    method, quantization, double_quant = _resolve_method(ledger, model, (hardware.gpu, stack))
    setting = RecipeContext(model, hardware, stack, stack.defaults_over(quantization))
    defaults, origin = setting.defaults, setting.origin
    parallel = resolve_parallel(ledger, hardware, stack, model)
    sharding = _resolve_sharding(ledger, setting, parallel)
    checkpoints: bool = ledger.choose("gradient_checkpointing", defaults.gradient_checkpointing, origin)
    every: int = ledger.choose("checkpoint_every", 1, origin)
    policy: CheckpointPolicy = ledger.choose("checkpoint_policy", defaults.checkpoint_policy, origin)
    offload = _resolve_offload(ledger, setting, every_layer=checkpoints and every == 1)
    numerics = _resolve_numerics(ledger, setting, _Basis(method, quantization, double_quant, sharding))
    return Recipe(
        method=method,
        numerics=numerics,
        adapter=_resolve_adapter(ledger, setting, sharding, (numerics, task)) if method == "lora" else None,
        train_layers=_resolve_train_layers(ledger, model),
        optimizer=_resolve_optimizer(ledger, setting, sharding, offload),
        sharding=sharding,
        offload=offload,
        gradient_checkpointing=checkpoints,
        checkpoint_reentrant=_resolve_reentrant(ledger, setting, sharding, method),
        checkpoint_every=every,
        checkpoint_policy=policy,
        attention=_resolve_attention(ledger, setting, numerics),
        loss=_resolve_loss(ledger, setting, task),
        batch=resolve_batch(ledger, setting, task, lengths),
        task=task,
        caches_reference=stack.caches_reference and task == "dpo",
        compares_logits=stack.loss_weights == "divergence" and task == "sft",
        frozen=resolve_frozen(ledger, model),
        optimizer_in_backward=ledger.choose("optimizer_in_backward", False, origin),
        optimizer_rank=_resolve_optimizer_rank(ledger),
        rollout=resolve_rollout(ledger, task),
        parallel=parallel,
    )


def _resolve_reentrant(ledger: Ledger, setting: RecipeContext, sharding: Sharding, method: Method) -> bool:
    """Whether checkpoints are reentrant, which some stacks leave alone under DDP and force under ZeRO-3."""
    if method == "lora" and sharding.is_zero3 and setting.stack.zero3_reentrant_adapters:
        ledger.enter("checkpoint_reentrant", True, setting.origin, "forced beside adapters under ZeRO-3")
        return True
    leaves_alone = sharding == DDP and not setting.stack.reentrant_under_ddp
    reentrant = setting.defaults.checkpoint_reentrant and not leaves_alone
    return bool(ledger.choose("checkpoint_reentrant", reentrant, setting.origin))


@dataclass(frozen=True, slots=True)
class _Basis:
    """What the dtypes depend on."""

    method: Method
    quantization: Quantization
    double_quant: bool
    sharding: Sharding

    @property
    def deepspeed(self) -> bool:
        return self.sharding.engine == "deepspeed"


def _resolve_method(
    ledger: Ledger, model: ModelSpec, setting: tuple[GpuSpec, Stack]
) -> tuple[Method, Quantization, bool]:
    """Method, quantisation and double quantisation; those of a packed checkpoint win over a method's.

    Source: transformers 5.23 quantizers/auto.py merge_quantization_configs.
    """
    given = ledger.request.values["method"]
    method, quantization, double_quant = METHOD_ALIASES[given.value]
    if (stored := model.stored) is not None and quantization in (None, "nf4"):
        ledger.enter("method", given.value, given.origin)
        held, note = held_as(stored, *setting)
        ledger.enter("double_quant", stored.double_quant, CATALOG, "the checkpoint's")
        return method, ledger.choose("quantization", held, CATALOG, note), stored.double_quant
    meaning = f"means {method} over an {quantization} base" if quantization else ""
    ledger.enter("method", given.value, given.origin, meaning)
    chosen = ledger.choose(
        "quantization", quantization or "none", "derived" if quantization else "assumed", meaning
    )
    four_bit = chosen in ("nf4", "fp4")
    note = (
        f"method {given.value}"
        if double_quant
        else "bitsandbytes leaves it off unless asked"
        if four_bit
        else ""
    )
    doubled = ledger.choose(
        "double_quant", bool(double_quant) and four_bit, "derived" if double_quant else "assumed", note
    )
    return method, chosen, doubled


def _resolve_sharding(ledger: Ledger, setting: RecipeContext, parallel: Parallel) -> Sharding:
    chosen, note = default_sharding(parallel, setting.hardware, setting.stack, setting.defaults.sharding)
    from_stack = not note and chosen not in (NONE.name, DDP.name)
    origin = setting.origin if from_stack else "assumed"
    return sharding_named(ledger.choose("sharding", chosen, origin, note))


def _resolve_offload(ledger: Ledger, setting: RecipeContext, *, every_layer: bool) -> Offload:
    """What leaves the GPU; a stack that moves block inputs by itself does so where ``every_layer`` is
    checkpointed.
    """
    if setting.defaults.offload == "none" or not every_layer:
        return ledger.choose("offload", "none", "assumed")
    return ledger.choose(
        "offload",
        setting.defaults.offload,
        setting.origin,
        "its checkpointing moves block inputs to host RAM",
    )


def _resolve_numerics(ledger: Ledger, setting: RecipeContext, basis: _Basis) -> Numerics:
    precision, stored = _resolve_precision(ledger, setting, basis), setting.model.stored
    asked = _resolve_load_dtype(ledger, setting, basis, precision)
    load_dtype = _as_loaded(ledger, setting, basis, precision, asked)
    if stored is not None and stored.quantization in BITSANDBYTES:
        storage = stored.quant_storage
        ledger.enter("quant_storage", storage, CATALOG, "the checkpoint's")
    else:
        storage = ledger.choose("quant_storage", None, "assumed")
    return Numerics(
        load_dtype=load_dtype,
        precision=precision,
        quantization=basis.quantization,
        double_quant=basis.double_quant,
        quant_storage=storage,
        packing=stored.packing if stored is not None else Packing(),
        fp8=_resolve_fp8(ledger, basis.sharding),
        qat=ledger.choose("qat", "none", "assumed") if ledger.is_given("qat") else "none",
        qat_group=ledger.choose("qat_group", 256, "assumed") if ledger.is_given("qat", "qat_group") else 256,
    )


def _resolve_fp8(ledger: Ledger, sharding: Sharding) -> Fp8:
    """Only FSDP2 asks a weight for its cast; elsewhere each product makes it.

    Source: torchao 0.18.0 float8/fsdp_utils.py WeightWithDynamicFloat8CastTensor.
    """
    fp8: Fp8 = ledger.choose("fp8", "none", "assumed") if ledger.is_given("fp8") else "none"
    if fp8 != GATHERED_FP8 or sharding.dtensors:
        return fp8
    ledger.enter("fp8", "tensorwise", "derived", "weights are gathered in 8 bits by FSDP2 alone")
    return "tensorwise"


def _as_loaded(
    ledger: Ledger, setting: RecipeContext, basis: _Basis, precision: Precision, asked: Dtype
) -> Dtype:
    """The dtype of what is not packed, which the loader of AWQ models decides where the stack says so, and
    ``zero.Init`` where DeepSpeed's file turns on no 16 bits.

    Source: transformers 4.52.4 and 5.23 quantizers/quantizer_awq.py update_dtype; deepspeed 0.19.8
    runtime/zero/partition_parameters.py _set_dtype.
    """
    divided = basis.sharding.is_zero3 and setting.stack.divides_as_made and basis.quantization == "none"
    if basis.quantization == "awq-int4" and asked == "bf16" and setting.stack.awq_in_fp16:
        made: Dtype = "fp16"
        origin, note = setting.origin, "Transformers loads AWQ models in fp16 where bf16 is asked for"
    elif divided and precision == "fp32" and asked != "fp32":
        made, origin = "fp32", "derived"
        note = "ZeRO-3 divides weights in fp32 where nothing turns on its 16 bits"
    else:
        return asked
    ledger.enter("load_dtype", made, origin, note)
    return made


def _resolve_precision(ledger: Ledger, setting: RecipeContext, basis: _Basis) -> Precision:
    default, origin, note = setting.defaults.precision, setting.origin, ""
    if setting.stack.autocast_as_weights and _asked_dtype(ledger, setting) != "bf16":
        default, note = "fp16-mixed", "autocast follows the dtype of the weights"
    if default.startswith("bf16") and lacks_bf16(setting.hardware.gpu):
        default = "fp16-mixed" if default == "bf16-mixed" else "fp16"
        origin, note = "assumed", f"{setting.hardware.gpu.name} has no bf16 units"
    if basis.deepspeed and default in ("bf16", "fp16"):
        default = "bf16-mixed" if default == "bf16" else "fp16-mixed"
        origin, note = "assumed", "DeepSpeed keeps fp32 masters beside 16-bit weights"
    return ledger.choose("precision", default, origin, note)


def _asked_dtype(ledger: Ledger, setting: RecipeContext) -> Dtype:
    """The dtype of the weights that was given, else that of the checkpoint."""
    said: Dtype | None = ledger.request.get("load_dtype")
    return setting.model.checkpoint_dtype if said in (None, CHECKPOINT_DTYPE) else said


def _resolve_load_dtype(ledger: Ledger, setting: RecipeContext, basis: _Basis, precision: Precision) -> Dtype:
    default, origin, note = setting.defaults.load_dtype, setting.origin, ""
    given = ledger.request.values.get("load_dtype")
    if given is not None and given.value == CHECKPOINT_DTYPE:
        ledger.enter("load_dtype", setting.model.checkpoint_dtype, given.origin, _CHECKPOINT_NOTE)
        return setting.model.checkpoint_dtype
    if default == "checkpoint":
        default, note = setting.model.checkpoint_dtype, _CHECKPOINT_NOTE
    if default == "bf16" and lacks_bf16(setting.hardware.gpu):
        default, origin, note = "fp16", "assumed", f"{setting.hardware.gpu.name} has no bf16 units"
    if default == "fp32" and precision in ("bf16", "fp16") and ledger.is_given("precision"):
        default, origin, note = precision, "assumed", _NO_CAST_NOTE
    widens = setting.stack.trainable_fp32 or setting.stack.autocast_as_weights
    native = basis.sharding.engine == "native" and not widens
    if basis.method == "full" and native and precision == "fp16-mixed" and default == "fp16":
        default, origin, note = "fp32", "assumed", _SCALING_NOTE
    return ledger.choose("load_dtype", default, origin, note)


def _adapter_dtype(setting: RecipeContext, numerics: Numerics, sharding: Sharding) -> tuple[Dtype, str]:
    """The stack's dtype of adapters with a note; before PEFT 0.12 they follow the weight that they adapt."""
    default = setting.defaults.adapter_dtype
    if numerics.quantization == "none" and sharding.is_zero3 and setting.stack.zero3_adapters_as_base:
        return numerics.load_dtype, "the trainer makes them in the dtype of the base under ZeRO-3"
    if default != "base":
        return default, ""
    if numerics.quantization != "none" or setting.stack.prepares_unquantized:
        return "fp32", "made in fp32 over a prepared base: this PEFT makes them so, or in the base's dtype"
    return numerics.load_dtype, "the dtype in which the base is loaded, as PEFT before 0.12 makes them"


def _resolve_dropout(ledger: Ledger, setting: RecipeContext, task: Task, *, vera: bool) -> float:
    """That of the stack or of VeRA, or zero where the trainer says so."""
    if keeps_dropout(task, setting.stack):
        value = 0.0 if vera else setting.defaults.lora_dropout
        told = ("assumed", f"{_VERA}: vera_dropout") if vera else (setting.origin, "")
        return ledger.choose("lora_dropout", value, *told)
    ledger.enter("lora_dropout", 0.0, "derived", f"the trainer for {task} sets every dropout to zero")
    return 0.0


def _default_targets(setting: RecipeContext) -> tuple[tuple[str, ...], str, str]:
    """What the stack adapts, with origin and note; where that is only assumed to be every linear layer, less
    those whose adapters fail, which nobody who trains this model has.
    """
    default = setting.defaults.lora_targets
    failing = refused_by_peft(setting.model) | failing_routers(setting.model)
    is_assumed = any(
        (name, settled_by) == ("defaults.lora_targets", "assumed")
        for name, settled_by, _ in setting.stack.settled
    )
    if default != ("all-linear",) or not failing or not is_assumed:
        return default, setting.origin, ""
    note = f"every linear layer but {', '.join(sorted(failing))}, whose adapters fail"
    return linear_names_without(setting.model, failing), ASSUMED, note


def _resolve_targets(ledger: Ledger, setting: RecipeContext) -> tuple[str, ...]:
    """Names of modules; an expression becomes the names that it matches."""
    default, origin, note = _default_targets(setting)
    targets: tuple[str, ...] = ledger.choose("lora_targets", default, origin, note)
    frozen, fused = ledger.request.get("freeze") or (), setting.stack.fused_experts
    if spelled := spelled_out(setting.model, targets, fused_experts=fused, frozen=frozen):
        return _entered(ledger, *spelled)
    patterns = [target for target in targets if target.startswith(TARGET_PATTERN)]
    if not patterns:
        return targets
    others = tuple(target for target in targets if target not in patterns)
    if len(patterns) > 1 or not all(other.startswith(TARGET_PARAMETER) for other in others):
        raise UsageError(f"lora_targets: say '{show(patterns[0])}' alone, without other names")
    found = (*matched_targets(setting.model, patterns[0].removeprefix(TARGET_PATTERN)), *others)
    return _entered(ledger, found, "the modules that the expression matches")


def _entered(ledger: Ledger, targets: tuple[str, ...], note: str) -> tuple[str, ...]:
    """``targets`` in place of what was given for them."""
    ledger.reword("lora_targets", targets, note)
    return targets


def _resolve_adapter(
    ledger: Ledger, setting: RecipeContext, sharding: Sharding, basis: tuple[Numerics, Task]
) -> Adapter:
    defaults, origin = setting.defaults, setting.origin
    numerics, task = basis
    dtype_origin, precision = origin, numerics.precision
    dtype, note = _adapter_dtype(setting, numerics, sharding)
    if dtype != "fp32" and precision == "fp16-mixed" and sharding.engine == "native":
        dtype, dtype_origin, note = "fp32", "assumed", _SCALING_NOTE
    modules: tuple[str, ...] = ledger.choose("modules_to_save", (), "assumed")
    block_size: int = (
        ledger.choose("oft_block_size", 0, "assumed") if ledger.is_given("oft_block_size") else 0
    )
    vera = ledger.is_given("vera") and bool(ledger.choose("vera", False, "assumed"))
    rank = (_VERA_RANK, "assumed", f"{_VERA}: r") if vera else (defaults.lora_rank, origin)
    return Adapter(
        rank=0 if block_size else ledger.choose("lora_rank", *rank),
        targets=_resolve_targets(ledger, setting),
        dropout=0.0 if block_size else _resolve_dropout(ledger, setting, task, vera=vera),
        modules_to_save=modules,
        dtype=ledger.choose("adapter_dtype", dtype, dtype_origin, note),
        dora=ledger.is_given("dora") and bool(ledger.choose("dora", False, "assumed")),
        oft_block_size=block_size,
        vera=vera,
    )


def _resolve_train_layers(ledger: Ledger, model: ModelSpec) -> tuple[str, ...]:
    """What is trained where that is not everything; entered only where it was given: else it is all."""
    if not ledger.is_given("train_layers"):
        return ()
    given: tuple[str, ...] = ledger.choose("train_layers", (), "assumed")
    trained_parts(given, model.n_layers, tied=model.tied)
    return given


def _resolve_optimizer(
    ledger: Ledger, setting: RecipeContext, sharding: Sharding, offload: Offload
) -> Optimizer:
    default = setting.defaults.optimizer
    if cannot_step(default, sharding):
        return ledger.choose(
            "optimizer", "adamw_torch", "assumed", f"{default} cannot step FSDP2's DTensors, torch's Adam can"
        )
    if offload.startswith("optimizer") and default in GPU_ONLY_OPTIMIZERS:
        return ledger.choose(
            "optimizer", "adamw_torch", "assumed", f"{default} cannot step in host RAM, Adam can"
        )
    return ledger.choose("optimizer", default, setting.origin)


def _resolve_optimizer_rank(ledger: Ledger) -> int | None:
    """Entered only for an optimizer that projects, or where it was given."""
    facts = OPTIMIZER_FACTS.get(ledger.request.get("optimizer"))
    if not (facts and facts.projects) and not ledger.is_given("optimizer_rank"):
        return None
    rank: int = ledger.choose("optimizer_rank", 128, "assumed", "transformers 5.23.0 trainer_optimizer.py")
    return rank


def _resolve_attention(ledger: Ledger, setting: RecipeContext, numerics: Numerics) -> Attention:
    model, gpu, stack = setting.model, setting.hardware.gpu, setting.stack
    default, origin, note = setting.defaults.attention, setting.origin, ""
    if asks_to_divide(ledger.request) and stack.model_parallel in ("gathered_heads", "exchanged_heads"):
        default, origin, note = "flash2", "assumed", "sequences are divided with FlashAttention alone"
    if ATTENTION_FACTS[default].is_flash and (
        lacks_flash2(gpu) or numerics.compute_dtype == "fp32" or widest_head(model) > 256
    ):
        default, origin, note = "sdpa", "assumed", f"{ATTENTION_FACTS[default].title} does not run here"
    if default == "flex" and code_lacks(model, stack, default):
        default, origin, note = "sdpa", "assumed", "FlexAttention was not read for this model"
    if code_lacks(model, stack, default) or prefers_eager(model, stack, default):
        note = f"what this stack runs {model.architecture} models with"
        default, origin = "eager", "assumed"
    return ledger.choose("attention", default, origin, note)


def _resolve_loss(ledger: Ledger, setting: RecipeContext, task: Task) -> Loss:
    """The stack's loss; preferences are learnt from log-probabilities that its trainer takes in its own
    way.
    """
    if task == "classify" or degrees(ledger.request).pipeline > 1:
        return ledger.choose("loss", "hf", "assumed", "as no other of labels or a pipeline was read")
    if task in LANGUAGE_TASKS:
        loss: Loss = ledger.choose("loss", setting.defaults.loss, setting.origin)
        if loss == "liger" and not takes_liger_loss(setting.model, setting.stack):
            ledger.reword("loss", "hf", f"Liger's is not made for {setting.model.architecture} models here")
            return "hf"
        return loss
    in_pieces = takes_tiles(task, setting.stack)
    return ledger.choose(
        "loss", "chunked" if in_pieces else "hf", setting.origin, f"that of its trainer for {task}"
    )
