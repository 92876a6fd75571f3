"""Which matrices LoRA adapts, and which modules are trained whole."""

from __future__ import annotations

from functools import lru_cache

from planner.domain.model import LinearSpec, ModelSpec
from planner.domain.recipes.recipe import TARGET_PARAMETER, Adapter, Number
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
    if not linear.adaptable:
        return False
    for target in targets:
        if target.startswith(TARGET_PARAMETER):
            continue
        if target == "all-linear":
            if linear.group != "head":
                return True
            continue
        if target == "attention":
            if linear.group == "attention":
                return True
            continue
        parent, _, name = target.rpartition(".")
        if name == linear.name and (not parent or _parent_matches(parent, linear)):
            return True
    return False


def is_merged(linear: LinearSpec, targets: tuple[str, ...], stack: Stack) -> bool:
    """Whether an adapter of experts is added to their weight itself,
    which PEFT does for tensors that are no module of their own.

    Unsloth takes such adapters apart again: unsloth_zoo 2026.10.9 temporary_patches/moe_utils.py.
    """
    is_bare = linear.kind == "parameter" and linear.group == "expert"
    return is_bare and stack.skips_experts and is_adapted(linear, targets)


def _parent_matches(parent: str, linear: LinearSpec) -> bool:
    last = parent.rpartition(".")[2]
    if linear.group == "attention":
        return "att" in last or last == "mixer"
    if linear.group == "mixer":
        return last in ("mamba", "mixer")
    return linear.group in ("mlp", "expert", "shared_expert") and last in (
        "mlp",
        "feed_forward",
        "experts",
        "shared_expert",
    )


@lru_cache(maxsize=256)
def adapted_widths(model: ModelSpec, targets: tuple[str, ...]) -> int:
    """Sum of ``in + out`` features over all adapted matrices of the model:
    the adapter parameters per unit of rank.
    """
    blocks = sum(
        count * linear.copies * linear.rank_factor * (linear.in_features + linear.out_features)
        for linear, count in model.linears()
        if is_adapted(linear, targets)
    )
    head = model.head.in_features + model.head.out_features if is_adapted(model.head, targets) else 0
    return blocks + head


def adapter_param_count(model: ModelSpec, adapter: Adapter) -> Number:
    """LoRA parameters: ``rank * (in + out)`` per adapted matrix,
    at twice the rank where gate and up experts are fused.

    DoRA adds a number for each output.  OFT has rotations instead.
    """
    if adapter.oft_block_size:
        return rotation_count(model, adapter.targets, adapter.oft_block_size)
    return adapter.rank * adapted_widths(model, adapter.targets) + (
        magnitude_count(model, adapter.targets) if adapter.dora else 0
    )


@lru_cache(maxsize=4096)
def oft_block_size(in_features: int, said: int) -> int:
    """The divisor of a matrix's inputs that is nearest to the block size that was said, the smaller of two.

    Source: peft 0.21 tuners/oft/layer.py OFTLayer.adjust_oft_parameters.
    """
    divisors = (size for size in range(1, in_features + 1) if in_features % size == 0)
    return min(divisors, key=lambda size: abs(size - min(said, in_features)))


@lru_cache(maxsize=256)
def rotation_count(model: ModelSpec, targets: tuple[str, ...], said: int) -> int:
    """Numbers that OFT trains: for each block of ``b`` inputs those above the diagonal of a square,
    ``b (b - 1) / 2``.

    Source: peft 0.21 tuners/oft/layer.py OFTLayer.update_layer.
    """
    sides = [
        (linear.in_features, n)
        for linear, n in (*model.linears(), (model.head, 1))
        if is_adapted(linear, targets)
    ]
    return sum(n * in_features * (oft_block_size(in_features, said) - 1) // 2 for in_features, n in sides)


@lru_cache(maxsize=256)
def magnitude_count(model: ModelSpec, targets: tuple[str, ...]) -> int:
    """Numbers that DoRA trains beside the factors: one for each output of each adapted matrix.

    Source: peft 0.21 tuners/lora/dora.py DoraLinearLayer.update_layer.
    """
    return sum(
        n * each.copies * each.out_features
        for each, n in (*model.linears(), (model.head, 1))
        if is_adapted(each, targets)
    )


@lru_cache(maxsize=256)
def adapted_linear_count(model: ModelSpec, targets: tuple[str, ...]) -> int:
    """Number of adapted matrices (a fused expert tensor counts once)."""
    blocks = sum(count for linear, count in model.linears() if is_adapted(linear, targets))
    return blocks + int(is_adapted(model.head, targets))


@lru_cache(maxsize=256)
def saved_module_params(model: ModelSpec, modules: tuple[str, ...]) -> int:
    """Parameters of ``modules_to_save``:
    PEFT trains a full copy of each named module beside the frozen original.
    """
    count = 0
    for name in modules:
        last = name.rpartition(".")[2]
        if last == model.token_embedding.name:
            count += model.token_embedding.param_count
        elif last == model.head.name:
            count += model.head.weight_count + model.head.bias_count
        else:
            count += sum(
                n * (linear.weight_count + linear.bias_count)
                for linear, n in model.linears()
                if linear.name == last
            )
    return count
