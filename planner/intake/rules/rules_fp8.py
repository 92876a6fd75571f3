"""Rules about products in 8-bit floats."""

from __future__ import annotations

from planner.domain.recipes.fp8 import MULTIPLE, keeps_fp8_weights, te_scaling
from planner.domain.recipes.fp8_scaling import takes_blocks
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.intake.rules.rule import Case, not_modelled, refuse, warn

_ROWS = {"delayed": 8, "tensorwise": 8, "blockwise": 8, "mxfp8": 32}
"""Tokens of a micro-batch on one GPU are a multiple of these."""


def _asks_fp8(case: Case) -> bool:
    return case.numerics.fp8 != "none"


def _asks_te(case: Case) -> bool:
    return bool(te_scaling(case.numerics.fp8))


def _fp8_unread(case: Case) -> str:
    """What about this job nobody read beside products in 8 bits; empty where nothing is."""
    recipe, sharding = case.recipe, case.recipe.sharding
    reasons = (
        (_is_unread_stack(case), f"stack '{case.stack.id}'"),
        (recipe.method != "full", "adapters"),
        (bool(recipe.train_layers), "partly trained models"),
        (recipe.task not in ("sft", "pretrain"), f"task {recipe.task}"),
        (case.model.is_moe or case.model.vision is not None, "mixtures of experts and models that see"),
        (any(group.block.mixer is not None for group in case.model.groups), "layers without attention"),
        (recipe.parallel.tensor > 1 and not _is_megatron(case), "tensor parallelism"),
        (_is_unread_sharding(case), f"sharding {sharding}"),
        (recipe.offload != "none", f"offload {recipe.offload}"),
        (case.numerics.compute_dtype != "bf16", f"precision {case.numerics.precision}"),
        *(_te_unread(case) if _asks_te(case) else ()),
    )
    return next((what for applies, what in reasons if applies), "")


def _is_megatron(case: Case) -> bool:
    return case.stack.model_code == "megatron-core"


def _is_unread_stack(case: Case) -> bool:
    """Megatron has Transformer Engine's products alone, and other stacks those that Accelerate puts in."""
    if _asks_te(case):
        return not _is_megatron(case) and case.stack.fp8_linears != "eager"
    return case.stack.fp8_linears == "unread"


def _is_unread_sharding(case: Case) -> bool:
    """Accelerate makes each matrix of Transformer Engine whole on each GPU before FSDP2 divides it, and
    stops under FSDP1, because Transformers makes the optimizer behind the model.

    Source: accelerate 1.15 accelerator.py _prepare_te; transformers 5.23 trainer.py _prepare_for_training.
    """
    sharding = case.recipe.sharding
    plain = not sharding.communicates or sharding.name == "ddp"
    if _asks_te(case):
        return not plain and not _is_megatron(case)
    return not plain and not sharding.dtensors


def _te_unread(case: Case) -> tuple[tuple[bool, str], ...]:
    """What else nobody read beside products of Transformer Engine.

    Accelerate hands an optimizer its own matrices in the place of those that it was made for.  One that
    remembers these stops: by state (Muon), or by hooks (layer by layer).
    Source: accelerate 1.15 accelerator.py _prepare_te (``mapping[p]``); llamafactory 0.9.5
    third_party/muon/muon.py (``use_muon``); transformers 5.23 trainer_pt_utils.py LayerWiseDummyOptimizer.
    """
    recipe, own = case.recipe, not _is_megatron(case)
    linears = [spec for spec, _ in case.model.linears()]
    odd = any(spec.in_features % MULTIPLE or spec.out_features % MULTIPLE for spec in linears)
    norms = [norm for group in case.model.groups for norm in group.block.norms]
    library = OPTIMIZER_FACTS[recipe.optimizer].library
    precise = case.stack.adam_states != "masters"
    return (
        (not case.gpu.is_cuda, f"the card {case.gpu.name}"),
        (own and keeps_fp8_weights(case.numerics.fp8), "weights in 8 bits outside of Megatron"),
        (own and case.model.tied, "a head that is the token table, of which Accelerate makes a copy,"),
        (own and any(norm.kind == "layer" for norm in norms), "LayerNorms, which Accelerate replaces,"),
        (own and recipe.loss not in ("hf", "liger"), f"loss {recipe.loss}"),
        (own and any(spec.kind != "linear" for spec in linears), "matrices that are no nn.Linear"),
        (own and library in ("tool", "package"), f"optimizer {recipe.optimizer}"),
        (own and recipe.optimizer_in_backward, "an optimizer that steps in the backward pass"),
        (odd, f"matrices whose sides are no multiples of {MULTIPLE}"),
        (precise and case.numerics.fp8 == "te-delayed-gathered", f"adam_states={case.stack.adam_states}"),
    )


def _recomputes_otherwise(case: Case) -> bool:
    """Whether PyTorch stops: a checkpoint without reentry runs again in 16 bits, and saves other tensors.

    Source: accelerate 1.15 utils/transformer_engine.py contextual_fp8_autocast (around the forward alone);
    torch 2.13 utils/checkpoint.py check_recomputed_tensors_match.
    """
    recipe = case.recipe
    asked = _asks_te(case) and not _is_megatron(case)
    return asked and recipe.gradient_checkpointing and not recipe.checkpoint_reentrant


def _aligned_rows(case: Case) -> int:
    """Tokens of a product come in multiples of this: in eights, those of blocks in blocks; 1 where none is
    in 8 bits.

    Source: TransformerEngine d0067d0d pytorch/utils.py assert_dim_for_fp8_exec, csrc/quantizer.cpp:1509.
    """
    return _ROWS.get(te_scaling(case.numerics.fp8), 1) * case.recipe.parallel.tensor


def _is_unaligned(case: Case) -> bool:
    batch = case.recipe.batch
    varies = batch.padding == "longest" and (batch.is_padded or batch.lengths is not None)
    return _asks_te(case) and not varies and _any(batch.rows * batch.seq_len % _aligned_rows(case))


def _pads_to_no_multiple(case: Case) -> bool:
    batch = case.recipe.batch
    return _asks_te(case) and batch.padding == "longest" and _any(batch.rows % _aligned_rows(case))


def _any(condition: object) -> bool:
    return bool(condition.any()) if hasattr(condition, "any") else bool(condition)


FLOAT8_RULES = (
    refuse(
        "fp8-not-on-card",
        "The card has no units for products of 8-bit floats: use --fp8 none",
        lambda case: (
            _asks_fp8(case) and case.gpu.bf16_flop_per_s is not None and case.gpu.fp8_flop_per_s is None
        ),
        lambda case: case.gpu.name,
    ),
    refuse(
        "fp8-scaling-not-on-card",
        "The card has no such products: --fp8 te-mxfp8 needs compute capability 10, te-blockwise 9; use "
        "--fp8 te-tensorwise",
        lambda case: _asks_fp8(case) and case.gpu.is_cuda and not takes_blocks(case.numerics, case.gpu),
        lambda case: case.gpu.name,
    ),
    refuse(
        "te-recomputes-otherwise",
        "PyTorch stops: a checkpoint computes again in 16 bits what Transformer Engine computed in 8; use "
        "--checkpoint-reentrant or --no-gradient-checkpointing",
        _recomputes_otherwise,
        lambda case: f"fp8 {case.numerics.fp8}",
    ),
    refuse(
        "te-tokens-unaligned",
        "Transformer Engine stops: tokens of a micro-batch, on each GPU, must come in eights, with te-mxfp8 "
        "in thirty-twos; use such a --seq",
        _is_unaligned,
    ),
    warn(
        "te-tokens-vary",
        "Transformer Engine stops at a micro-batch whose tokens do not come in eights, with te-mxfp8 in "
        "thirty-twos, as samples of their own lengths do not: have the collator pad to such a multiple "
        "(pad_to_multiple_of)",
        _pads_to_no_multiple,
    ),
    not_modelled(
        "fp8-unread",
        "Training in fp8 is modelled for full fine-tunes of dense models in bf16: by torchao's Float8Linear "
        "alone, under DDP and under FSDP2; by Transformer Engine alone, under DDP and under Megatron",
        lambda case: _asks_fp8(case) and bool(_fp8_unread(case)),
        lambda case: f"{_fp8_unread(case)} beside it were not read",
    ),
)
