"""The step program of the later decoders against the traced modules of Transformers:
what is allocated at the peak, at two lengths.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.allocator.events import read_jsonl
from tests.against_libraries.dry_run.test_dry_run import run
from tests.against_libraries.dry_run.test_vision_dry_run import program_peak, trace_peak
from tests.extras import needs

pytestmark = needs("torch", "transformers", "peft")
_SIZES = {
    "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 4096, "torch_dtype": "bfloat16",
    "pad_token_id": 0,
}  # fmt: skip
_GEMMA = {
    **_SIZES, "model_type": "gemma4_text", "intermediate_size": 2048, "num_key_value_heads": 4,
    "head_dim": 64, "global_head_dim": 128, "sliding_window": 128, "final_logit_softcapping": 30.0,
    "num_hidden_layers": 6,
}  # fmt: skip
_GLOBAL = {"attention_k_eq_v": True, "num_global_key_value_heads": 2}
_DENSE = {**_GEMMA, **_GLOBAL, "hidden_size_per_layer_input": 0}
_EXPERTS = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 256}
_TEXT = {**_SIZES, "intermediate_size": 1280, "num_hidden_layers": 4, "num_key_value_heads": 2}
_CHOSEN = {"moe_intermediate_size": 256, "num_experts": 8, "num_experts_per_tok": 2}
_TOWER = {
    "hidden_size": 192, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 512,
    "image_size": 128, "patch_size": 16,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "glm4_moe_lite": {
        **_SIZES, "model_type": "glm4_moe_lite", "intermediate_size": 1024, "moe_intermediate_size": 256,
        "num_hidden_layers": 4, "num_key_value_heads": 8, "n_routed_experts": 8, "num_experts_per_tok": 4,
        "q_lora_rank": 192, "kv_lora_rank": 128, "qk_nope_head_dim": 48, "qk_rope_head_dim": 16,
        "v_head_dim": 64,
    },
    "mistral4": {
        **_SIZES, "model_type": "mistral4", "intermediate_size": 1024, "moe_intermediate_size": 256,
        "num_hidden_layers": 4, "num_key_value_heads": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "q_lora_rank": 192, "kv_lora_rank": 128, "qk_nope_head_dim": 48, "qk_rope_head_dim": 16,
        "v_head_dim": 64,
    },
    "afmoe": {
        **_SIZES, "model_type": "afmoe", "intermediate_size": 1536, "moe_intermediate_size": 256,
        "num_hidden_layers": 4, "num_dense_layers": 1, "num_key_value_heads": 2, "head_dim": 64,
        "num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 1, "sliding_window": 128,
        "mup_enabled": True,
    },
    "solar_open": {
        **_TEXT, "model_type": "solar_open", "moe_intermediate_size": 256, "head_dim": 64,
        "n_routed_experts": 8, "num_experts_per_tok": 2,
    },
    "hy_v3": {**_TEXT, **_CHOSEN, "model_type": "hy_v3", "head_dim": 64},
    "exaone_moe": {**_TEXT, **_CHOSEN, "model_type": "exaone_moe", "sliding_window": 128},
    "minicpm3": {
        **_SIZES, "model_type": "minicpm3", "intermediate_size": 1280, "num_hidden_layers": 4,
        "num_key_value_heads": 8, "q_lora_rank": 192, "kv_lora_rank": 128, "qk_nope_head_dim": 48,
        "qk_rope_head_dim": 16,
    },
    "dots1": {
        **_SIZES, "model_type": "dots1", "intermediate_size": 1536, "moe_intermediate_size": 256,
        "num_hidden_layers": 4, "first_k_dense_replace": 1, "num_key_value_heads": 8, "n_routed_experts": 8,
        "n_shared_experts": 2, "num_experts_per_tok": 4,
    },
    "phimoe": {
        **_SIZES, "model_type": "phimoe", "intermediate_size": 768, "num_hidden_layers": 4,
        "num_key_value_heads": 2, "num_local_experts": 8, "attention_bias": True, "lm_head_bias": True,
        "input_jitter_noise": 0.01,
    },
    "cwm": {**_TEXT, "model_type": "cwm", "head_dim": 64, "sliding_window": 128},
    "hyperclovax": {**_TEXT, "model_type": "hyperclovax", "residual_multiplier": 0.5},
    "helium": {**_TEXT, "model_type": "helium", "head_dim": 64},
    "iquestcoder": {**_TEXT, "model_type": "iquestcoder"},
    "jais2": {**_TEXT, "model_type": "jais2"},
    "nanochat": {**_TEXT, "model_type": "nanochat"},
    "vaultgemma": {**_TEXT, "model_type": "vaultgemma", "head_dim": 64, "sliding_window": 128},
    "flex_olmo": {
        **_TEXT, "model_type": "flex_olmo", "intermediate_size": 384, "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "youtu": {
        **_TEXT, "model_type": "youtu", "num_key_value_heads": 8, "q_lora_rank": 192, "kv_lora_rank": 128,
        "qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "v_head_dim": 64,
    },
    "codegen": {
        "model_type": "codegen", "n_embd": 512, "n_head": 8, "n_layer": 4, "vocab_size": 4096,
        "rotary_dim": 32, "pad_token_id": 0, "torch_dtype": "bfloat16",
    },
    "falcon with slopes": {
        **_SIZES, "model_type": "falcon", "num_hidden_layers": 4, "alibi": True, "bias": True,
        "multi_query": False, "parallel_attn": False,
    },
    "gpt_neo": {
        "model_type": "gpt_neo", "hidden_size": 512, "num_heads": 8, "num_layers": 4, "vocab_size": 4096,
        "attention_types": [[["global", "local"], 2]], "pad_token_id": 0, "torch_dtype": "bfloat16",
    },
    "gpt_bigcode": {
        "model_type": "gpt_bigcode", "n_embd": 512, "n_head": 8, "n_layer": 4, "vocab_size": 4096,
        "pad_token_id": 0, "torch_dtype": "bfloat16",
    },
    "mamba2": {
        "model_type": "mamba2", "hidden_size": 512, "num_heads": 16, "state_size": 64, "n_groups": 2,
        "num_hidden_layers": 4, "vocab_size": 4096, "chunk_size": 128, "torch_dtype": "bfloat16",
        "pad_token_id": 0,
    },
    "mamba": {
        "model_type": "mamba", "hidden_size": 512, "num_hidden_layers": 4, "vocab_size": 4096,
        "torch_dtype": "bfloat16", "pad_token_id": 0,
    },
    "falcon_mamba": {
        "model_type": "falcon_mamba", "hidden_size": 512, "num_hidden_layers": 4, "vocab_size": 4096,
        "time_step_rank": 64, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "pad_token_id": 0,
    },
    "biogpt": {
        **_SIZES, "model_type": "biogpt", "num_hidden_layers": 4, "intermediate_size": 2048,
    },
    "smolvlm": {
        "model_type": "smolvlm", "scale_factor": 4, "text_config": {**_TEXT, "model_type": "llama"},
        "vision_config": _TOWER, "torch_dtype": "bfloat16",
    },
    "idefics3": {
        "model_type": "idefics3", "scale_factor": 4, "text_config": {**_TEXT, "model_type": "llama"},
        "vision_config": _TOWER, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    },
    "llava_onevision": {
        "model_type": "llava_onevision", "text_config": {**_TEXT, "model_type": "qwen2"},
        "vision_config": {**_TOWER, "model_type": "siglip_vision_model", "vision_use_head": False},
        "torch_dtype": "bfloat16",
    },
    "aya_vision": {
        "model_type": "aya_vision", "alignment_intermediate_size": 640,
        "text_config": {**_TEXT, "model_type": "cohere2"}, "torch_dtype": "bfloat16",
        "vision_config": {**_TOWER, "model_type": "siglip_vision_model", "vision_use_head": False},
    },
    "idefics2": {
        "model_type": "idefics2", "text_config": {**_TEXT, "model_type": "mistral"},
        "perceiver_config": {"resampler_depth": 2}, "vision_config": _TOWER, "torch_dtype": "bfloat16",
    },
    "lfm2_vl": {
        "model_type": "lfm2_vl", "projector_hidden_size": 320, "torch_dtype": "bfloat16",
        "text_config": {**_TEXT, "model_type": "lfm2", "layer_types": ["conv", "full_attention"] * 2},
        "vision_config": {
            **{name: value for name, value in _TOWER.items() if name != "image_size"},
            "model_type": "siglip2_vision_model", "vision_use_head": False,
        },
    },
    "muse_glimmer": {
        "model_type": "muse_glimmer", "out_hidden_size": 768, "projector_hidden_size": 320,
        "text_config": {
            **_TEXT, "model_type": "muse_glimmer_text", "head_dim": 64, "sliding_window": 128,
        },
        "vision_config": {
            "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
        },
        "torch_dtype": "bfloat16",
    },
    "nemotron": {
        **_SIZES, "model_type": "nemotron", "intermediate_size": 1536, "num_hidden_layers": 4,
        "num_key_value_heads": 2,
    },
    "gemma3n": {
        **_SIZES, "model_type": "gemma3n_text", "intermediate_size": 2048, "num_key_value_heads": 2,
        "head_dim": 64, "sliding_window": 128, "num_hidden_layers": 10, "vocab_size_per_layer_input": 4096,
        "hidden_size_per_layer_input": 64, "num_kv_shared_layers": 4, "laurel_rank": 16,
        "activation_sparsity_pattern": [0.95] * 3 + [0.0] * 7,
        "layer_types": ["sliding_attention", "full_attention"] * 5,
    },
    "gemma4 dense": _DENSE,
    "gemma4 experts": {**_DENSE, **_EXPERTS, "intermediate_size": 512},
    "gemma4 inputs": {
        **_GEMMA, "num_key_value_heads": 2, "num_hidden_layers": 10, "vocab_size_per_layer_input": 4096,
        "hidden_size_per_layer_input": 64, "num_kv_shared_layers": 4, "use_double_wide_mlp": True,
        "layer_types": ["sliding_attention", "full_attention"] * 5,
    },
    "gemma4 unified": {
        "model_type": "gemma4_unified", "torch_dtype": "bfloat16", "text_config": {
            **{name: value for name, value in _DENSE.items() if "per_layer" not in name},
            "model_type": "gemma4_unified_text",
        },
        "vision_config": {"model_type": "gemma4_unified_vision", "mm_embed_dim": 512,
        "output_proj_dims": 512},
        "audio_config": {"model_type": "gemma4_unified_audio"},
    },
}  # fmt: skip
# PEFT's adapter fails on the router of Phi-3.5-MoE, and it refuses one of Mamba 2's output projection.
_TARGETS = {
    "phimoe": "q_proj;k_proj;v_proj;o_proj",
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2"), "in_proj"),
}
_WITHOUT_SDPA = ("codegen", "falcon_mamba", "gpt_neo", "mamba", "mamba2", "vaultgemma")
_QUICK = {
    ("gemma4 inputs", "lora", True, 256),
    ("minicpm3", "lora", False, 256),
    ("dots1", "lora", True, 256),
}
_QUICK |= {("phimoe", "lora", False, 256), ("gpt_neo", "full", True, 256), ("gpt_bigcode", "lora", True, 256)}
_QUICK |= {("mamba", "full", False, 256), ("mamba2", "full", False, 256), ("idefics2", "lora", True, 256)}
_QUICK |= {("nemotron", "full", False, 256), ("mistral4", "full", False, 256), ("afmoe", "full", True, 256)}
_QUICK |= {("helium", "full", False, 256), ("nanochat", "lora", True, 256), ("flex_olmo", "lora", False, 256)}
_QUICK |= {("exaone_moe", "lora", True, 256), ("hy_v3", "lora", False, 256)}
_QUICK |= {("codegen", "lora", False, 256), ("hyperclovax", "full", True, 256)}
_QUICK |= {("falcon with slopes", "lora", True, 256), ("muse_glimmer", "lora", False, 256)}
CASES = [
    pytest.param(
        kind, method, again, seq, marks=() if (kind, method, again, seq) in _QUICK else pytest.mark.slow
    )
    for kind in CONFIGS
    for method, again in (("full", False), ("full", True), ("lora", False), ("lora", True))
    for seq in (256, 1024)
]


@pytest.mark.parametrize(("kind", "method", "again", "seq"), CASES)
def test_allocated_is_that_of_the_traced_modules(
    kind: str, method: str, again: bool, seq: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 2 %, trained whole or with adapters, checkpointed or not."""
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(CONFIGS[kind]), encoding="utf-8")
    flags: dict[str, object] = {
        "model": "config.json", "method": method, "gpu": "a100-80-sxm", "seq": seq, "batch": 2,
        "optimizer": "adamw_torch",
    }  # fmt: skip
    flags |= {"attention": "eager"} if kind in _WITHOUT_SDPA else {}
    adapter = {"lora_rank": 8, "lora_dropout": 0, "lora_targets": _TARGETS.get(kind, "all-linear")}
    flags |= adapter if method == "lora" else {}
    words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += ["--gradient-checkpointing" if again else "--no-gradient-checkpointing", "--all-layers"]
    code, _, err = run("trace", *words, "--events", "trace.jsonl")
    assert code == 0, err
    flags["gradient_checkpointing"] = again
    assert program_peak(flags) == pytest.approx(trace_peak(read_jsonl("trace.jsonl")), rel=0.02)
