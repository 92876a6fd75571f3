"""Parameters and matrices of models that mix tokens without attention in some layers,
against Transformers' modules on meta.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.catalog.models import model_entry, model_ids
from planner.domain.model import ModelSpec
from tests.against_libraries.parameters.modules import built, n_parameters
from tests.extras import import_or_skip

torch = import_or_skip("torch")

KINDS = {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_next", "ernie4_5_moe"}
KINDS |= {"jamba", "falcon_h1", "nemotron_h", "lfm2", "lfm2_moe", "mamba2"}
NAMES = sorted(
    name
    for name in model_ids()
    if (config := model_entry(name).config)["model_type"] in KINDS or "mamba" in config.get("layer_types", ())
)
_SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 96,
}
_SMALL |= {"num_key_value_heads": 2, "head_dim": 12, "pad_token_id": 0}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 10,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 24,
}
_MAMBA = {"mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_chunk_size": 32}
_NEMOTRON = {"mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 16}
_UNGATED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 24,
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3_5_text", _DELTA),
    (
        "qwen3_5_text",
        _DELTA | {"attention_bias": True, "layer_types": ["full_attention", "linear_attention"] * 2},
    ),
    ("qwen3_5_moe_text", _DELTA | _EXPERTS),
    ("ernie4_5_moe", {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 20, "use_bias": True}),
    (
        "ernie4_5_moe",
        {"moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 2, "moe_num_shared_experts": 0},
    ),
    ("lfm2", {"layer_types": ["conv", "full_attention"] * 2, "conv_bias": True, "block_multiple_of": 16}),
    (
        "lfm2_moe",
        {
            "layer_types": ["conv", "full_attention"] * 2,
            "num_experts": 4,
            "moe_intermediate_size": 20,
            "conv_bias": True,
        },
    ),
    ("lfm2", {"full_attn_idxs": [1], "block_auto_adjust_ff_dim": False, "tie_embedding": False}),
    (
        "granitemoehybrid",
        _MAMBA | {"layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 40},
    ),
    (
        "granitemoehybrid",
        _MAMBA | {"layer_types": ["mamba"] * 4, "num_local_experts": 0, "mamba_proj_bias": True},
    ),
    ("bamba", _MAMBA | {"attn_layer_indices": [1], "mamba_conv_bias": False, "mlp_bias": True}),
    ("falcon_h1", _MAMBA | {"mamba_d_ssm": 48, "mamba_rms_norm": True, "projectors_bias": True}),
    ("falcon_h1", _MAMBA | {"mamba_d_ssm": None, "tie_word_embeddings": True}),
    ("nemotron_h", _NEMOTRON | {"hybrid_override_pattern": "M-*-"}),
    (
        "nemotron_h",
        _NEMOTRON | {"layers_block_type": ["mamba", "mlp", "attention", "mamba"], "use_bias": True},
    ),
    ("nemotron_h", _NEMOTRON | _UNGATED | {"hybrid_override_pattern": "ME*E"}),
    ("nemotron_h", _NEMOTRON | _UNGATED | {"hybrid_override_pattern": "ME*-", "moe_latent_size": 16}),
    ("mamba2", {"num_heads": 4, "head_dim": 24, "n_groups": 2, "state_size": 16}),
    (
        "mamba2",
        {
            "num_heads": 8,
            "head_dim": 24,
            "expand": 4,
            "state_size": 20,
            "use_bias": True,
            "use_conv_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    ("jamba", {"num_experts": 4, "mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1}),
    (
        "jamba",
        {
            "num_experts": 1,
            "num_experts_per_tok": 1,
            "mamba_dt_rank": 12,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
        },
    ),
    ("qwen3_next", _DELTA | _EXPERTS | {"mlp_only_layers": [1], "full_attention_interval": 2}),
]


def assert_is_module(spec: ModelSpec, config: dict[str, Any]) -> None:
    """The same parameters in all, and the same matrices by name and size."""
    module = built(config)
    assert spec.param_count == n_parameters(module)
    named = [
        (path, child)
        for path, child in module.get_decoder().layers.named_modules()
        if isinstance(child, torch.nn.Linear)
    ]
    found = Counter(
        (path.rpartition(".")[2], child.out_features, child.in_features, child.bias is not None)
        for path, child in named
    )
    said: Counter[tuple[str, int, int, bool]] = Counter()
    for group in spec.groups:
        for linear in group.block.linears:
            if linear.kind == "linear":
                said[(linear.name, linear.out_features, linear.in_features, linear.bias)] += group.count
    assert found == said


@pytest.mark.parametrize("name", NAMES)
def test_entries_are_the_modules_of_transformers(name: str) -> None:
    """At full depth; the published count is the same one."""
    entry = model_entry(name)
    config = entry.config_fields()
    spec = model_from_config(config, name)
    assert spec.param_count == entry.published_params
    assert_is_module(spec.text_part(), dict(config.get("text_config", config)))


@pytest.mark.parametrize(("kind", "change"), VARIANTS)
def test_optional_fields_match(kind: str, change: dict[str, Any]) -> None:
    """Absent fields mean the defaults of the configuration class."""
    config = {"model_type": kind} | _SMALL | change
    assert_is_module(model_from_config(config, kind), config)
