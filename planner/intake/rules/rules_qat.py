"""Rules about matrices that are rounded as if quantised."""

from __future__ import annotations

from planner.domain.recipes.recipe import LANGUAGE_TASKS
from planner.intake.rules.rule import Case, not_modelled, refuse

_BLOCK = 32
"""Elements that share a scale in MXFP4."""
_OF_AXOLOTL = ("mxfp4", "ternary")


def _asked(case: Case) -> bool:
    return case.numerics.qat != "none"


def _is_wide(case: Case) -> bool:
    """Whether a product sees another dtype than that of the weights."""
    return case.numerics.fp8 != "none" or case.numerics.compute_dtype != case.numerics.load_dtype


def _unread(case: Case) -> str:
    """What about this job nobody read beside it; empty where nothing is."""
    recipe, stack, kind = case.recipe, case.stack, case.numerics.qat
    in_blocks = kind == "mxfp4"
    reasons = (
        (stack.qat_weights == "unread" or stack.adapter_kernels == "compiled", f"stack '{stack.id}'"),
        (kind in _OF_AXOLOTL and stack.qat_weights != "int4", f"{kind} on stack '{stack.id}'"),
        (in_blocks and case.numerics.qat_group != _BLOCK, f"mxfp4 without --qat-group {_BLOCK}"),
        (case.numerics.quantization != "none", f"a base in {case.numerics.quantization}"),
        (_is_wide(case), f"precision {case.numerics.precision} of weights in {case.numerics.load_dtype}"),
        (recipe.adapter is not None and (recipe.adapter.dora or stack.qat_weights == "int4"), "an adapter"),
        (bool(recipe.train_layers), "partly trained models"),
        (recipe.task not in LANGUAGE_TASKS, f"task {recipe.task}"),
        (case.model.is_moe or case.model.vision is not None, "mixtures of experts and models that see"),
        (any(group.block.mixer is not None for group in case.model.groups), "layers without attention"),
        (recipe.loss == "chunked" or (recipe.loss != "hf" and stack.model_code == "own"), "a loss in pieces"),
        (recipe.uses_deepspeed or recipe.sharding.is_fsdp1, f"sharding {recipe.sharding}"),
        (recipe.parallel.tensor > 1, "tensor parallelism"),
    )
    return next((what for applies, what in reasons if applies), "")


def _undivided(case: Case) -> str:
    """The first adapted matrix that groups do not divide; empty where they divide all."""
    targets = case.adapter.targets if case.adapter else ()
    undivided = (spec.name for spec, _ in case.model.linears() if spec.in_features % case.numerics.qat_group)
    return next((name for name in undivided if name in targets or "all-linear" in targets), "")


def _rounds_nothing(case: Case) -> bool:
    """Whether groups divide no matrix of a layer (torchao 0.14.1 _check_linear_int4_k)."""
    linears = [spec for spec, _ in case.model.linears() if spec.kind == "linear"]
    return not any(case.numerics.rounds(spec.in_features) for spec in linears)


QAT_RULES = (
    not_modelled(
        "qat-unread",
        "Rounding as if quantised is modelled for dense models of torchtune's recipes without torch.compile, "
        "and for full fine-tunes of Axolotl; leave --qat out",
        lambda case: _asked(case) and bool(_unread(case)),
        lambda case: f"{_unread(case)} beside it was not read",
    ),
    refuse(
        # torchtune 0.6.1 modules/peft/lora.py QATLoRALinear.__init__.
        "qat-group-undivided",
        "torchtune adapts only matrices whose inputs are whole groups; say a --qat-group that divides them",
        lambda case: _asked(case) and bool(_undivided(case)),
        lambda case: f"{_undivided(case)} has no whole groups of {case.numerics.qat_group}",
    ),
    refuse(
        "qat-group-alone",
        "--qat-group says in what groups --qat rounds weights, and --qat is not given, or ternary, which "
        "rounds whole matrices",
        lambda case: (
            "qat_group" in case.given and ("qat" not in case.given or case.numerics.qat == "ternary")
        ),
    ),
    refuse(
        "qat-rounds-nothing",
        "No matrix of a layer has inputs that are whole groups, so that nothing is rounded; say a "
        "--qat-group that divides them",
        lambda case: _asked(case) and _rounds_nothing(case),
        lambda case: f"groups of {case.numerics.qat_group}",
    ),
)
