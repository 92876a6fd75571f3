"""LoRA targets as a regular expression, which PEFT matches with the whole path of each module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from planner.domain.model import LinearGroup, LinearSpec, ModelSpec
from planner.errors import NotModelledError, UsageError, show
from planner.files.expressions import compiled

# Where layers are: in a model of text, and in the text part of one that sees,
# today and before Transformers 4.52.
_LAYERS = ("model.layers", "model.language_model.layers", "language_model.model.layers")
_PARENTS: dict[LinearGroup, tuple[str, ...]] = {
    "attention": ("self_attn",),
    "mlp": ("mlp",),
    "expert": ("mlp.experts", "mlp.experts.0", "block_sparse_moe.experts", "block_sparse_moe.experts.0"),
    "shared_expert": ("mlp.shared_expert", "mlp.shared_experts", "shared_mlp"),
    "router": ("mlp", "block_sparse_moe"),
}
_IN_MIXER = ("linear_attn",)
"""Parents of the projections of linear attention."""
_OF_LFM2: dict[LinearGroup, tuple[str, ...]] = {
    "mlp": ("feed_forward",),
    "expert": ("feed_forward.experts", "feed_forward.experts.0"),
    "router": ("feed_forward",),
    "mixer": ("conv",),
}
_OTHERWISE = {"lfm2": _OF_LFM2, "lfm2_moe": _OF_LFM2}
_NAMED_LIKE_LLAMA = """
    apertus cohere cohere2 deepseek_v3 gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4
    gemma4_unified glm glm4 gpt_oss granite granitemoe internlm3 llama mistral mixtral olmo
    olmo2 olmo3 olmoe phi phi3 qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_text qwen3_moe seed_oss smollm3 stablelm
    starcoder2
"""
NAMED_LIKE_LLAMA = frozenset(_NAMED_LIKE_LLAMA.split())
"""Architectures whose layers hold ``self_attn`` and ``mlp``: the modules that transformers 5.23 builds,
in each case compared.
"""
_IN_LAYER = {
    **dict.fromkeys(("per_layer_input_gate", "per_layer_projection"), ""),
    **dict.fromkeys(("linear_left", "linear_right"), "laurel."),
    **dict.fromkeys(("correction_coefs", "prediction_coefs", "modality_router"), "altup."),
}
"""Matrices of Gemma 3n and 4 that are in none of these, and what is before their names."""


@lru_cache(maxsize=256)
def matched_targets(model: ModelSpec, pattern: str) -> tuple[str, ...]:
    """Names of the matrices that an expression matches, in every layer.

    Source: peft 0.21 utils/other.py match_target_against_key (``re.fullmatch`` over the paths of modules).

    Raises:
        UsageError: no regular expression, or one that matches no matrix.
        NotModelledError: modules of some layers only, experts, or a model whose paths are not known.
    """
    expression = compiled(pattern, "lora_targets")
    if model.architecture not in NAMED_LIKE_LLAMA and model.architecture not in _OTHERWISE:
        kind = f"the paths of modules of {model.architecture} models"
        raise NotModelledError(
            f"lora_targets: {kind}, which '{show(pattern)}' is matched with, are not known: name the modules"
        )
    for layers in _LAYERS:
        if found := _found(model, expression, layers):
            return found
    raise UsageError(f"lora_targets: '{show(pattern)}' matches no matrix of {model.id}")


def _found(model: ModelSpec, pattern: re.Pattern[str], layers: str) -> tuple[str, ...]:
    outcomes: dict[str, set[bool]] = {}
    number = 0
    for group in model.groups:
        parents = _PARENTS | _OTHERWISE.get(model.architecture, {})
        if group.block.mixer is not None:
            parents["attention"] = _IN_MIXER
        for _ in range(group.count):
            for linear in group.block.linears:
                matches = any(
                    pattern.fullmatch(path) for path in _paths(linear, f"{layers}.{number}", parents)
                )
                if matches and (linear.kind == "parameter" or linear.group in ("expert", "router")):
                    raise NotModelledError(
                        f"lora_targets: '{show(pattern.pattern)}' matches experts: name the modules"
                    )
                outcomes.setdefault(linear.name, set()).add(matches)
            number += 1
    if any(len(each) > 1 for each in outcomes.values()):
        raise NotModelledError(
            f"lora_targets: '{show(pattern.pattern)}' matches a module in some places only: not modelled"
        )
    found = tuple(name for name, (matches,) in outcomes.items() if matches)
    around = layers.removesuffix("layers")
    found += tuple(each.name for each in model.extra_linears if pattern.fullmatch(f"{around}{each.name}"))
    return (*found, model.head.name) if pattern.fullmatch(model.head.name) else found


def _paths(linear: LinearSpec, layer: str, parents: Mapping[LinearGroup, tuple[str, ...]]) -> list[str]:
    names = (linear.name, *linear.legacy_names)
    if linear.name in _IN_LAYER:
        return [f"{layer}.{_IN_LAYER[linear.name]}{linear.name}"]
    return [f"{layer}.{parent}.{name}" for parent in parents.get(linear.group, ()) for name in names]
