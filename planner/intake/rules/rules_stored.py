"""Rules about bases whose checkpoint holds packed matrices."""

from __future__ import annotations

from math import ceil

from planner.catalog.left_whole import packs_tower
from planner.catalog.quantization_config import OF_THE_LAYERS
from planner.domain.recipes.recipe import BITSANDBYTES, IN_GROUPS, PREPACKED
from planner.domain.stored import stored_text
from planner.errors import REFUSED_BY_TOOL
from planner.intake.rules.rule import Case, not_modelled, refuse, warn
from planner.intake.rules.rules_recipe import adapted_expert_bytes
from planner.intake.supported import lacks_fp8, runs_deepgemm


def _is_prepacked(case: Case) -> bool:
    return case.numerics.quantization in PREPACKED


def _differs_from_stored(case: Case) -> bool:
    stored = case.model.stored
    return stored is not None and case.numerics.quantization != stored.quantization and not _is_widened(case)


def _is_stored_in_fp8(case: Case) -> bool:
    return case.model.stored is not None and case.model.stored.quantization == "fp8"


def _has_other_experts(case: Case) -> bool:
    """Whether experts are not those that ``FP8Experts`` computes, or have adapters."""
    blocks = [group.block for group in case.model.groups if group.block.mlp.n_experts]
    biased = any(linear.bias for block in blocks for linear in block.linears if linear.group == "expert")
    clamped = any(block.mlp.activation == "clamped_swiglu" for block in blocks)
    return biased or clamped or adapted_expert_bytes(case) > 0


def _is_widened(case: Case) -> bool:
    """Whether weights in fp8 are turned to 16 bits while they load, asked for or not."""
    return _is_stored_in_fp8(case) and case.numerics.quantization == "none"


def _uneven_side(case: Case) -> int:
    """A side of a matrix stored in fp8 that does not divide by its number of blocks; 0 without such.

    Source: transformers 5.23 integrations/finegrained_fp8.py Fp8Dequantize._dequantize_one.
    """
    block = case.model.stored.packing.group if case.model.stored is not None else 0
    stored = (spec for spec, _ in case.model.linears() if not spec.left_whole)
    sides = (side for spec in stored for side in (spec.out_features // spec.rank_factor, spec.in_features))
    return next((side for side in sides if block and side % ceil(side / block)), 0)


def _keeps_fp8(case: Case) -> bool:
    return case.numerics.quantization == "fp8"


def _why_widened(case: Case) -> str:
    if case.stack.fp8_checkpoints == "unpacked":
        return f"stack '{case.stack.id}' asks for them"
    return f"{case.gpu.name} has no fp8" if lacks_fp8(case.gpu) else "--quantization none asks for them"


def _stored_text(case: Case) -> str:
    stored = case.model.stored
    return (
        f"it is stored as {stored_text(stored)}, not {case.numerics.quantization}"
        if stored is not None
        else ""
    )


def _computes_otherwise(case: Case) -> bool:
    stored = case.model.stored
    if stored is None or stored.compute_dtype is None or case.numerics.quantization not in BITSANDBYTES:
        return False
    if case.stack.linear4bit_dtype == "loaded":
        return False
    return stored.compute_dtype != case.numerics.compute_dtype


def _compute_text(case: Case) -> str:
    stored = case.model.stored
    return f"{stored.compute_dtype} against {case.numerics.compute_dtype}" if stored is not None else ""


def _packs_fused_experts(case: Case) -> bool:
    linears = (linear for group in case.model.groups for linear in group.block.linears)
    fused = any(linear.group == "expert" and linear.kind == "parameter" for linear in linears)
    return fused and case.stack.passes_over == "parameters" and case.numerics.arrives_packed


def _multiplies_four_dimensions(case: Case) -> bool:
    """Whether an int8 matrix gets an input of four dimensions: latents, as one head of attention."""
    linears = (linear for group in case.model.groups for linear in group.block.linears)
    latents = any(linear.reads == "attn_latent_kv" for linear in linears)
    return latents and case.numerics.quantization == "int8" and case.stack.latents_by_head


STORED_RULES = (
    refuse(
        "int8-sharded",
        "ZeRO-3 and FSDP cannot divide an int8 base, but for FSDP2 of Axolotl since 0.15: use ddp or "
        "ZeRO-1/2, or a 4-bit base with quant_storage",
        lambda case: (
            case.shards_weights
            and case.numerics.quantization == "int8"
            and not (case.recipe.sharding.dtensors and case.stack.fsdp2_divides_int8)
        ),
    ),
    refuse(
        # bitsandbytes 0.50 backends/cuda/ops.py _int8_linear_matmul_impl, where Axolotl 0.19's dry run of GLM
        # 4.7 Flash ends; autograd/_functions.py MatMul8bitLt.forward makes two dimensions of three alone.
        "int8-latents",
        "bitsandbytes stops at an int8 kv_b_proj, to which Transformers since 5.15 hands latents as a "
        f"head of attention: use --method qlora or lora [{REFUSED_BY_TOOL}]",
        _multiplies_four_dimensions,
        lambda case: case.model.id,
    ),
    refuse(
        # transformers 5.23 quantizers/auto.py merge_quantization_configs: another kind is refused,
        # the same kind is ignored.
        "stored-otherwise",
        "A packed checkpoint stays as it is stored, whatever is asked for: leave quantization out, or give "
        "the model before it was quantised",
        _differs_from_stored,
        _stored_text,
    ),
    not_modelled(
        "stored-computes-otherwise",
        "The checkpoint's matrices compute in its own bnb_4bit_compute_dtype, and another one than the "
        "recipe's is not modelled: use that precision, --stack unsloth, or the 16-bit model",
        _computes_otherwise,
        _compute_text,
    ),
    not_modelled(
        "packed-kernels-unread",
        "Nobody read how this stack computes over a GPTQ, AWQ or AQLM base: use --stack hf-trainer@5 "
        "or trl, or nf4",
        lambda case: _is_prepacked(case) and not _keeps_fp8(case) and case.stack.packed_kernels == "unread",
        lambda case: case.stack.id,
    ),
    not_modelled(
        # transformers 5.23: fused expert tensors are no nn.Linear, which is all that quantisers replace.
        "packed-fused-experts",
        "The experts of this stack are tensors of their own, in which nobody read how packed ones are "
        "held: use a stack of Transformers 4, or the model before it was quantised",
        _packs_fused_experts,
        lambda case: case.stack.id,
    ),
    not_modelled(
        # transformers 5.23 quantizers/quantizers_utils.py should_convert_module, quantizer_awq.py: "visual"
        # of Qwen's lists does not match model.visual, whose 16-bit weights then have no module.
        "packed-tower",
        "Transformers packs the vision tower of such a base unless its list names it by its whole path "
        "(model.visual), and then finds no weights for it: use GPTQ, or the 16-bit model with nf4",
        lambda case: (
            _is_prepacked(case)
            and case.numerics.quantization not in OF_THE_LAYERS
            and packs_tower(case.model)
        ),
        lambda case: f"{case.model.id}, {case.numerics.quantization}",
    ),
    warn(
        # gptqmodel 7.3.4 utils/importer.py select_quant_linear,
        # nn_modules/qlinear/__init__.py BaseQuantLinear.train.
        "packed-needs-backend",
        "Counted with the kernels that can train: gptqmodel takes them with backend='auto_trainable' in "
        "GPTQConfig or AwqConfig, and fails with its default",
        lambda case: case.numerics.quantization in IN_GROUPS and case.stack.packed_kernels == "gptqmodel",
    ),
    warn(
        "packed-groups-assumed",
        "Groups of 128 inputs are assumed, as nobody gave those of the checkpoint; the interval allows for "
        "32 and for single groups: give its config.json as --model",
        lambda case: case.numerics.quantization in IN_GROUPS and case.model.stored is None,
    ),
    warn(
        "gptq-sharded",
        "Weights of GPTQ and AWQ are buffers, which ZeRO-3 and FSDP do not divide: each GPU "
        "holds all of them",
        lambda case: (
            case.shards_weights and case.numerics.quantization in IN_GROUPS and not case.recipe.divides_base
        ),
    ),
    refuse(
        "aqlm-of-no-checkpoint",
        "What AQLM takes depends on the code books of the checkpoint: name one, or give its config.json",
        lambda case: case.numerics.quantization == "aqlm" and case.numerics.packing.codebooks == 0,
    ),
    not_modelled(
        "aqlm-sharded",
        "Nobody read what ZeRO-3 and FSDP do with the codes of an AQLM base: use ddp or ZeRO-1/2",
        lambda case: case.shards_weights and case.numerics.quantization == "aqlm",
    ),
    not_modelled(
        # deepspeed 0.19.8 runtime/engine.py _configure_distributed_model: module.bfloat16() widens fp8.
        "fp8-sharded",
        "Nobody read what DeepSpeed and FSDP do with a base that stays in fp8: use ddp, or --quantization "
        "none",
        lambda case: (case.shards_weights or case.recipe.uses_deepspeed) and _keeps_fp8(case),
    ),
    not_modelled(
        # transformers 5.23 integrations/finegrained_fp8.py FP8Experts: no biases; peft 0.21
        # tuners/lora/layer.py ParamWrapper adds to a tensor.
        "fp8-experts-unread",
        "Experts in fp8 are read without biases, with a plain gate, and without adapters: name "
        "--lora-targets attention, or use --quantization none",
        lambda case: _keeps_fp8(case) and _has_other_experts(case),
    ),
    not_modelled(
        "fp8-checkpoint-unread",
        "Nobody read what this stack makes of a checkpoint in fp8: name one in 16 bits, or use --stack "
        "hf-trainer@5 or trl",
        lambda case: (_keeps_fp8(case) or _is_stored_in_fp8(case)) and case.stack.fp8_checkpoints == "unread",
        lambda case: case.stack.id,
    ),
    refuse(
        # transformers 4.57.6 quantizers/quantizer_finegrained_fp8.py validate_environment and is_trainable.
        "fp8-checkpoint-too-new",
        "Transformers before 5.0 neither trains over a checkpoint in fp8 nor turns it to 16 bits: name one "
        f"in 16 bits [{REFUSED_BY_TOOL}]",
        lambda case: (_keeps_fp8(case) or _is_stored_in_fp8(case)) and case.stack.fp8_checkpoints == "never",
        lambda case: case.stack.id,
    ),
    refuse(
        # transformers 5.0.0 to 5.21.1 quantizers/quantizer_finegrained_fp8.py is_trainable: False, which
        # trainer_utils.py validate_quantization_for_training asks; 5.22.0 has FP8LinearFunction.
        "fp8-not-trained",
        "This Transformers does not train over weights in fp8, as 5.22 is the first to do: "
        "load them as 16 bits (FineGrainedFP8Config(dequantize=True); here --quantization none) "
        f"[{REFUSED_BY_TOOL}]",
        lambda case: _keeps_fp8(case) and case.stack.fp8_checkpoints in ("widened", "unpacked"),
        lambda case: case.stack.id,
    ),
    refuse(
        "fp8-kept-on-no-card",
        "Transformers keeps weights in fp8 from compute capability 8.9 on alone, and turns them to 16 bits "
        "elsewhere: use --quantization none",
        lambda case: _keeps_fp8(case) and lacks_fp8(case.gpu),
        lambda case: case.gpu.name,
    ),
    not_modelled(
        "fp8-kept-unread",
        "Nobody read what products over this checkpoint take while it stays in fp8; as 16 bits "
        "(FineGrainedFP8Config(dequantize=True)) it is counted with --quantization none",
        lambda case: _keeps_fp8(case) and case.model.stored is not None and bool(case.model.stored.unread),
        lambda case: case.model.stored.unread if case.model.stored is not None else "",
    ),
    refuse(
        "fp8-widened-unevenly",
        "Transformers stops while it turns fp8 to 16 bits, at a matrix whose rows or columns do not divide "
        "by the number of their blocks: keep fp8 on a card that has it (Ada, Hopper, Blackwell), or name a "
        f"checkpoint in 16 bits [{REFUSED_BY_TOOL}]",
        lambda case: _is_widened(case) and _uneven_side(case) > 0,
        lambda case: f"a side of {_uneven_side(case):,}",
    ),
    warn(
        "fp8-blocks-assumed",
        "Blocks of 128 x 128 are assumed, and inputs that each step scales anew, as nobody gave those of the "
        "checkpoint: give its config.json as --model",
        lambda case: _keeps_fp8(case) and case.model.stored is None,
    ),
    warn(
        "fp8-widened",
        "The checkpoint's fp8 weights are counted as the 16 bits that they become while they load",
        _is_widened,
        _why_widened,
    ),
    warn(
        "fp8-by-deepgemm",
        "Counted with DeepGEMM, which Transformers takes on Hopper where it finds nvcc and the package "
        "kernels; without nvcc a Triton kernel takes less memory and more time",
        lambda case: _keeps_fp8(case) and runs_deepgemm(case.gpu),
    ),
)
