"""Which matrices LoRA adapts."""

from __future__ import annotations

from functools import lru_cache

from planner.domain.model import LinearSpec, ModelSpec
from planner.domain.recipes.recipe import TARGET_PARAMETER
from planner.domain.stack import Stack
from planner.intake.linears import reaches_experts


@lru_cache(maxsize=1024)
def is_adapted(linear: LinearSpec, targets: tuple[str, ...]) -> bool:
    """Whether PEFT would put an adapter on ``linear``.

    ``all-linear`` means every linear layer of the blocks, never the head (PEFT excludes the output layer);
    ``attention`` the attention projections; otherwise names are matched as suffixes of the module path, so
    ``c_proj`` hits attention and MLP while ``attn.c_proj`` hits attention only.  Fused expert tensors and
    routers of Transformers 5 are reached by the names of the matrices they replaced (``w1`` and ``w3``),
    where PEFT has a table for the architecture; dense matrices of those names then are not.
    Source: peft 0.21 ``tuners/tuners_utils.py`` (``check_target_module_exists``,
    ``_maybe_include_all_linear_layers``), ``utils/transformers_weight_conversion.py``
    (``_convert_peft_config_moe``).
    """
    if linear.kind == "parameter":
        return reaches_experts(linear, targets)
    return linear.adaptable and any(_reaches(target, linear) for target in targets)


def _reaches(target: str, linear: LinearSpec) -> bool:
    if target.startswith(TARGET_PARAMETER):
        return False
    if target in ("all-linear", "attention"):
        return linear.group != "head" if target == "all-linear" else linear.group == "attention"
    parent, _, name = target.rpartition(".")
    return name == linear.name and (not parent or _parent_matches(parent, linear))


def is_merged(linear: LinearSpec, targets: tuple[str, ...], stack: Stack) -> bool:
    """Whether PEFT adds an adapter to the weight of experts itself: tensors that are no module.

    Unsloth takes such adapters apart again: unsloth_zoo 2026.10.9 temporary_patches/moe_utils.py.  So do
    ScatterMoE's kernels.
    """
    is_bare = linear.kind == "parameter" and linear.group == "expert" and stack.mixture_code != "scattermoe"
    return is_bare and stack.passes_over != "nothing" and is_adapted(linear, targets)


def _parent_matches(parent: str, linear: LinearSpec) -> bool:
    last = parent.rpartition(".")[2]
    if linear.group == "attention":
        return "att" in last or last == "mixer"
    if linear.group == "mixer":
        return last in ("mamba", "mixer", "conv")
    feeds_forward = linear.group in ("mlp", "expert", "shared_expert")
    return feeds_forward and last in ("mlp", "feed_forward", "experts", "shared_expert")


@lru_cache(maxsize=4096)
def oft_block_size(in_features: int, given: int) -> int:
    """The divisor of a matrix's inputs that is nearest to the block size that was given, the smaller of two.

    Source: peft 0.21 tuners/oft/layer.py OFTLayer.adjust_oft_parameters.
    """
    divisors = (size for size in range(1, in_features + 1) if in_features % size == 0)
    return min(divisors, key=lambda size: abs(size - min(given, in_features)))


@lru_cache(maxsize=256)
def adapted_linear_count(model: ModelSpec, targets: tuple[str, ...]) -> int:
    """Number of adapted matrices (a fused expert tensor counts once)."""
    blocks = sum(count for linear, count in model.linears() if is_adapted(linear, targets))
    return blocks + int(is_adapted(model.head, targets))
