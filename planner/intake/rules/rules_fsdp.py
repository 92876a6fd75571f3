"""Rules about what FSDP gathers at a time."""

from __future__ import annotations

from planner.errors import REFUSED_BY_TOOL
from planner.intake.rules.rule import Case, not_modelled, refuse
from planner.intake.rules.rules_recipe import adapted_expert_bytes


def _units_unread(case: Case) -> bool:
    """Whether nobody read what units inside of layers do here.

    Flat parameters of the root get a gradient in each reentrant checkpoint.
    """
    in_root = case.recipe.method == "full" or not case.stack.fsdp1_wraps_adapters
    reentrant = case.recipe.gradient_checkpointing and case.recipe.checkpoint_reentrant
    mixtures = all(group.block.mlp.n_experts for group in case.model.groups)
    return case.recipe.sharding.dtensors or not mixtures or (in_root and reentrant)


def _flattens_two_dtypes(case: Case) -> bool:
    """Whether 4-bit matrices of bitsandbytes are stored in another dtype than the norms beside them."""
    numerics, stack = case.numerics, case.stack
    of_bitsandbytes = numerics.quantization in ("nf4", "fp4") and stack.model_code != "own"
    if not (case.recipe.sharding.is_fsdp1 and of_bitsandbytes):
        return False
    widens = stack.kbit_upcast_over(case.recipe) in ("all", "norms")
    return numerics.quant_storage != ("fp32" if widens else numerics.load_dtype)


FSDP_RULES = (
    refuse(
        # torch 2.13 distributed/fsdp/_flat_param.py _validate_tensors_to_flatten.
        "fsdp1-flattens-one-dtype",
        "FSDP1 stops at a layer whose 4-bit matrices and norms have two dtypes: give --quant-storage the "
        "dtype of loading, with a stack that leaves norms in it (trl, llama-factory), or use --sharding fsdp "
        f"[{REFUSED_BY_TOOL}]",
        _flattens_two_dtypes,
        lambda case: (
            f"matrices as {case.numerics.quant_storage or 'bytes'}, loaded as {case.numerics.load_dtype}, "
            f"widened: {case.stack.kbit_upcast_over(case.recipe)}"
        ),
    ),
    refuse(
        "fsdp-class-of-another",
        "A launch stops where the model has no layer of the class that FSDP is to wrap; name the model's own "
        f"class, or none [{REFUSED_BY_TOOL}]",
        lambda case: case.recipe.uses_fsdp and bool(case.stack.fsdp_layer_class),
        lambda case: f"{case.stack.fsdp_layer_class} is none of {case.model.architecture}",
    ),
    not_modelled(
        "fsdp1-adapts-fused-experts",
        "Copies that PEFT makes of fused expert tensors are not modelled where FSDP1 flattens those; use "
        "--sharding fsdp, or --lora-targets attention",
        lambda case: case.recipe.sharding.is_fsdp1 and adapted_expert_bytes(case) > 0,
    ),
    not_modelled(
        "fsdp-units-elsewhere",
        "Units of FSDP inside of layers are modelled for mixtures of experts under FSDP1, without reentrant "
        "checkpointing of weights that are trained whole; use --switches fsdp_units=layer",
        lambda case: case.recipe.uses_fsdp and case.stack.fsdp_units != "layer" and _units_unread(case),
    ),
)
