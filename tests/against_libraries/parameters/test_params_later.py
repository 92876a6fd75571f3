"""Parameter counts of later decoders whose layers have parts of their own, against Transformers' modules
on the meta device.
"""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from tests.against_libraries.parameters.modules import built, n_parameters
from tests.extras import import_or_skip

torch = import_or_skip("torch")
transformers = import_or_skip("transformers")

_SIZES = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 96, "pad_token_id": 0}
_GEMMA = {
    **_SIZES, "model_type": "gemma3n_text", "head_dim": 16, "vocab_size_per_layer_input": 80,
    "hidden_size_per_layer_input": 8, "laurel_rank": 4,
}  # fmt: skip
_GROUPED = {**_SIZES, "intermediate_size": 128, "num_hidden_layers": 2, "num_key_value_heads": 2}
_DBRX = {"model_type": "dbrx", "d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 96}
CONFIGS: list[dict[str, Any]] = [
    {**_GEMMA, "num_hidden_layers": 10, "num_kv_shared_layers": 4, "intermediate_size": 128},
    {
        **_GEMMA, "num_hidden_layers": 12, "num_kv_shared_layers": 2, "altup_num_inputs": 3,
        "intermediate_size": [128] * 6 + [256] * 6, "attention_bias": True, "num_key_value_heads": 1,
    },
    {"model_type": "minicpm3"},
    {**_SIZES, "model_type": "minicpm3", "q_lora_rank": None, "v_head_dim": 24, "attention_bias": True},
    {
        **_SIZES, "model_type": "nemotron", "intermediate_size": 128, "num_hidden_layers": 2,
        "num_key_value_heads": 4,
    },
    {
        **_SIZES, "model_type": "nemotron", "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32,
        "num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
    },
    {
        **_SIZES, "model_type": "afmoe", "intermediate_size": 128, "moe_intermediate_size": 32,
        "num_hidden_layers": 6, "head_dim": 32, "num_dense_layers": 2, "num_key_value_heads": 2,
        "num_experts": 8, "num_experts_per_tok": 2, "global_attn_every_n_layers": 3, "attention_bias": True,
    },
    {
        **_SIZES, "model_type": "afmoe", "intermediate_size": 128, "num_hidden_layers": 2, "num_experts": 8,
        "tie_word_embeddings": True,
    },
    {
        **_SIZES, "model_type": "dots1", "intermediate_size": 128, "moe_intermediate_size": 32,
        "num_hidden_layers": 3, "num_key_value_heads": 2, "first_k_dense_replace": 1, "n_routed_experts": 8,
        "n_shared_experts": 2, "num_experts_per_tok": 2,
    },
    {
        **_SIZES, "model_type": "dots1", "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32,
        "num_key_value_heads": 4, "attention_bias": True, "tie_word_embeddings": True, "n_routed_experts": 4,
        "n_shared_experts": 1, "num_experts_per_tok": 1,
    },
    {**_SIZES, "model_type": "phimoe", "intermediate_size": 128, "num_hidden_layers": 2,
     "num_key_value_heads": 2, "num_local_experts": 4, "attention_bias": True, "lm_head_bias": True},
    {**_SIZES, "model_type": "phimoe", "num_hidden_layers": 2, "num_key_value_heads": 4, "head_dim": 32,
     "tie_word_embeddings": True},
    {
        **_DBRX, "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 5e5},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2, "moe_jitter_eps": 0},
    },
    {**_DBRX, "attn_config": {"clip_qkv": 8.0, "rope_theta": 1e4}},
    {**_GROUPED, "model_type": "cwm"},
    {**_GROUPED, "model_type": "cwm", "head_dim": 24, "mlp_bias": True, "tie_word_embeddings": True},
    {**_GROUPED, "model_type": "hyperclovax", "head_dim": 24, "attention_bias": True, "mlp_bias": True},
    {**_GROUPED, "model_type": "hyperclovax", "use_post_norm": False, "tie_word_embeddings": True},
    {**_GROUPED, "model_type": "helium", "head_dim": 16},
    {**_GROUPED, "model_type": "helium", "head_dim": 16, "attention_bias": True, "mlp_bias": True,
     "tie_word_embeddings": True},
    {**_GROUPED, "model_type": "jais2"},
    {**_GROUPED, "model_type": "jais2", "attention_bias": False, "mlp_bias": False},
    {**_GROUPED, "model_type": "nanochat", "attention_bias": True, "tie_word_embeddings": True},
    {**_GROUPED, "model_type": "vaultgemma", "head_dim": 24, "attention_bias": True},
    {**_GROUPED, "model_type": "flex_olmo"},
    {**_GROUPED, "model_type": "flex_olmo", "num_experts": 4, "num_experts_per_tok": 2,
     "attention_bias": True, "tie_word_embeddings": True},
    {**_SIZES, "model_type": "youtu", "intermediate_size": 128, "num_hidden_layers": 2,
     "num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 24, "qk_nope_head_dim": 16,
     "qk_rope_head_dim": 8, "v_head_dim": 12, "tie_word_embeddings": False},
    {**_GROUPED, "model_type": "iquestcoder"},
    {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 96},
    {"model_type": "falcon_mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 96, "expand": 3,
     "time_step_rank": 12, "state_size": 8, "use_bias": True, "use_conv_bias": False,
     "tie_word_embeddings": False},
    {**_GROUPED, "model_type": "solar_open", "n_routed_experts": 8, "n_shared_experts": 2},
    {**_GROUPED, "model_type": "solar_open", "head_dim": 24, "attention_bias": True,
     "tie_word_embeddings": True, "n_routed_experts": 4, "num_experts_per_tok": 2},
    {**_GROUPED, "model_type": "hy_v3", "num_experts": 8, "attention_bias": True},
    {**_GROUPED, "model_type": "hy_v3", "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 3,
     "mlp_layer_types": ["sparse", "dense", "sparse"], "num_shared_experts": 2, "head_dim": 24},
    {**_GROUPED, "model_type": "exaone_moe", "num_experts": 8},
    {**_GROUPED, "model_type": "exaone_moe", "num_experts": 4, "num_experts_per_tok": 2,
     "first_k_dense_replace": 2, "num_hidden_layers": 4, "head_dim": 24, "tie_word_embeddings": True},
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config["model_type"]))
def test_count_is_that_of_the_modules(config: dict[str, Any]) -> None:
    """With few fields given, and with those that change shapes."""
    assert model_from_config(config, "config.json").param_count == n_parameters(built(config))


def test_what_gemma_3n_hears_with_is_counted() -> None:
    """The encoder of sounds is the module's; that of images, of timm, is a stated number."""
    text = {**_GEMMA, "num_hidden_layers": 10, "num_kv_shared_layers": 4, "intermediate_size": 128}
    audio = {"model_type": "gemma3n_audio", "hidden_size": 64, "conf_num_hidden_layers": 3}
    spec = model_from_config(
        {"model_type": "gemma3n", "text_config": text, "audio_config": audio}, "config.json"
    )
    with torch.device("meta"):
        module = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**audio))
    assert spec.vision is not None
    images = spec.vision.groups[0].block.param_count
    heard = spec.vision.tower_param_count - images
    assert (images, heard) == (294_126_912, sum(tensor.numel() for tensor in module.parameters()))


def test_what_voxtral_hears_with_is_counted() -> None:
    """With another width of each part than the defaults."""
    text = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128}
    audio = {"model_type": "voxtral_encoder", "hidden_size": 80, "intermediate_size": 120}
    audio |= {"num_hidden_layers": 3, "num_attention_heads": 4, "max_source_positions": 40}
    config = {"model_type": "voxtral", "text_config": text, "audio_config": audio}
    with torch.device("meta"):
        module = transformers.VoxtralForConditionalGeneration(transformers.AutoConfig.for_model(**config))
    counted = sum(tensor.numel() for tensor in module.parameters())
    assert model_from_config(config, "config.json").param_count == counted
