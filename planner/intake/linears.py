"""Names of the parts of a model, as PEFT's ``target_modules`` and ``modules_to_save`` would have to spell them."""

from __future__ import annotations

from planner.domain.model import LinearSpec, ModelSpec

GROUP_TARGETS = ("all-linear", "attention")


def linear_names(model: ModelSpec) -> tuple[str, ...]:
    """Names of all matrices: those of the blocks, then those outside, then the head."""
    inside = [linear.name for group in model.groups for linear in group.block.linears]
    return tuple(dict.fromkeys([*inside, *(linear.name for linear in model.extra_linears), model.head.name]))


def reaches_experts(linear: LinearSpec, targets: tuple[str, ...]) -> bool:
    """Whether LoRA targets reach a fused expert tensor, which they do by the names of the matrices that it replaced.

    Source: peft 0.21 ``utils/transformers_weight_conversion.py`` (``_convert_peft_config_moe``).
    """
    names = {target.rpartition(".")[2] for target in targets}
    return bool(linear.legacy_names) and ("all-linear" in names or names.issuperset(linear.legacy_names))


def unmatched_targets(model: ModelSpec, targets: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``targets`` that name no matrix of the model.  Only the last part of a dotted path is looked at."""
    known = {*linear_names(model), *GROUP_TARGETS}
    return tuple(target for target in targets if target.rpartition(".")[2] not in known)


def unmatched_modules(model: ModelSpec, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``modules`` (to save) that are neither a matrix nor the token table."""
    known = {*linear_names(model), model.token_embedding.name}
    return tuple(module for module in modules if module.rpartition(".")[2] not in known)
