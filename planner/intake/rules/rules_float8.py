"""Rules about products in 8-bit floats."""

from __future__ import annotations

from planner.intake.rules.rule import Case, not_modelled, refuse


def _asked(case: Case) -> bool:
    return case.numerics.fp8 != "none"


def _unread(case: Case) -> str:
    """What about this job nobody read beside products in 8 bits; empty where nothing is."""
    recipe, sharding = case.recipe, case.recipe.sharding
    reasons = (
        (case.stack.fp8_linears == "unread", f"stack '{case.stack.id}'"),
        (recipe.method != "full", "adapters"),
        (bool(recipe.train_layers), "partly trained models"),
        (recipe.task not in ("sft", "pretrain"), f"task {recipe.task}"),
        (case.model.is_moe or case.model.vision is not None, "mixtures of experts and models that see"),
        (any(group.block.mixer is not None for group in case.model.groups), "layers without attention"),
        (recipe.parallel.tensor > 1, "tensor parallelism"),
        (sharding.communicates and sharding.name != "ddp" and not sharding.dtensors, f"sharding {sharding}"),
        (recipe.offload != "none", f"offload {recipe.offload}"),
        (case.numerics.compute_dtype != "bf16", f"precision {case.numerics.precision}"),
    )
    return next((what for applies, what in reasons if applies), "")


FLOAT8_RULES = (
    refuse(
        "fp8-not-on-card",
        "The card has no units for products of 8-bit floats: use --fp8 none",
        lambda case: (
            _asked(case) and case.gpu.bf16_flop_per_s is not None and case.gpu.fp8_flop_per_s is None
        ),
        lambda case: case.gpu.name,
    ),
    not_modelled(
        "fp8-unread",
        "Training in fp8 is modelled for full fine-tunes of dense models in bf16, by torchao's Float8Linear, "
        "alone, under DDP and under FSDP2",
        lambda case: _asked(case) and bool(_unread(case)),
        lambda case: f"{_unread(case)} beside it were not read",
    ),
)
