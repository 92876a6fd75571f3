"""Towers whose sizes are read from a file, against the modules that Transformers builds on meta."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from tests.against_libraries.parameters.modules import built, n_parameters
from tests.extras import import_or_skip

torch = import_or_skip("torch")
transformers = import_or_skip("transformers")

_SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
_TEXT = {"model_type": "qwen2", **_SIZES, "num_hidden_layers": 2, "vocab_size": 512}
_GEMMA = {
    **_SIZES, "model_type": "gemma4_text", "num_hidden_layers": 6, "vocab_size": 512,
    "vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 32,
}  # fmt: skip
_SHARED = {
    "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}  # fmt: skip
_GLOBAL = {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
_EXPERTS = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64}
_UNIFIED = {name: value for name, value in _GEMMA.items() if "per_layer" not in name}
_LAYERS = {"num_hidden_layers": 3}
_SQUARE = {**_LAYERS, "intermediate_size": 512, "patch_size": 14}
_GLM = {"depth": 3, "hidden_size": 192, "num_heads": 4, "out_hidden_size": 256, "intermediate_size": 320}
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma4 with sounds": {
        "model_type": "gemma4", "text_config": {**_GEMMA, **_SHARED},
        "vision_config": {"model_type": "gemma4_vision", **_LAYERS},
        "audio_config": {"model_type": "gemma4_audio", **_LAYERS},
    },
    "gemma4 dense": {
        "model_type": "gemma4", "text_config": {**_GEMMA, **_GLOBAL}, "audio_config": None,
        "vision_config": {"model_type": "gemma4_vision", **_LAYERS, "hidden_size": 144, "head_dim": 72},
    },
    "gemma4 experts": {
        "model_type": "gemma4", "text_config": {**_GEMMA, **_GLOBAL, **_EXPERTS}, "audio_config": None,
        "vision_config": {"model_type": "gemma4_vision", **_LAYERS},
    },
    "gemma4 unified": {
        "model_type": "gemma4_unified", "text_config": {**_UNIFIED, "model_type": "gemma4_unified_text"},
        "vision_config": {"model_type": "gemma4_unified_vision", "mm_embed_dim": 96, "output_proj_dims": 96},
        "audio_config": {"model_type": "gemma4_unified_audio"},
    },
    "glm4v": {
        "model_type": "glm4v", "text_config": {**_TEXT, "model_type": "glm4v_text"},
        "vision_config": _GLM,
    },
    "glm4v_moe": {
        "model_type": "glm4v_moe", "vision_config": _GLM,
        "text_config": {
            **_TEXT, "model_type": "glm4v_moe_text", "n_routed_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
        },
    },
    "internvl": {
        "model_type": "internvl", "text_config": _TEXT,
        "vision_config": {"model_type": "internvl_vision", **_LAYERS, "attention_bias": True},
    },
    "internvl of 6B": {
        "model_type": "internvl", "text_config": _TEXT, "vision_config": {
            "model_type": "internvl_vision", **_LAYERS, "norm_type": "rms_norm", "use_qk_norm": True,
            "hidden_size": 320, "num_attention_heads": 4, "use_mean_pooling": False, "image_size": [224, 224],
        },
    },
    "pixtral": {
        "model_type": "llava", "text_config": _TEXT, "vision_feature_layer": -1,
        "vision_config": {"model_type": "pixtral", **_LAYERS, "hidden_size": 256, "intermediate_size": 512},
    },
    "paligemma": {
        "model_type": "paligemma", "projection_dim": 256, "text_config": {**_TEXT, "model_type": "gemma2"},
        "vision_config": {
            "model_type": "siglip_vision_model", **_SQUARE, "hidden_size": 144, "vision_use_head": False,
        },
    },
    "llava_next": {
        "model_type": "llava_next", "text_config": _TEXT,
        "vision_config": {"model_type": "clip_vision_model", **_SQUARE, "hidden_size": 240,
        "image_size": 336},
    },
    "llava_next_video": {
        "model_type": "llava_next_video", "text_config": _TEXT,
        "vision_config": {"model_type": "clip_vision_model", **_SQUARE, "hidden_size": 240,
        "image_size": 336},
    },
    "llava_onevision": {
        "model_type": "llava_onevision", "text_config": _TEXT, "vision_feature_layer": -1, "vision_config": {
            "model_type": "siglip_vision_model", **_SQUARE, "hidden_size": 144, "image_size": 384,
            "vision_use_head": False,
        },
    },
    "smolvlm": {
        "model_type": "smolvlm", "text_config": {**_TEXT, "model_type": "llama"}, "scale_factor": 4,
        "vision_config": {**_SQUARE, "hidden_size": 144, "image_size": 224},
    },
    "idefics3": {
        "model_type": "idefics3", "text_config": {**_TEXT, "model_type": "llama"},
        "tie_word_embeddings": True, "vision_config": {"image_size": 64},
    },
    "muse_glimmer": {
        "model_type": "muse_glimmer", "text_config": {**_TEXT, "model_type": "muse_glimmer_text"},
        "vision_config": {**_SQUARE, "hidden_size": 144, "pos_emb_height": 8, "pos_emb_width": 8},
        "out_hidden_size": 576, "projector_hidden_size": 96,
    },
    "muse_glimmer by default": {
        "model_type": "muse_glimmer", "text_config": {**_TEXT, "model_type": "muse_glimmer_text"},
    },
    "aya_vision": {
        "model_type": "aya_vision", "alignment_intermediate_size": 320, "vision_config": {
            "model_type": "siglip_vision_model", **_SQUARE, "hidden_size": 144, "image_size": 364,
            "vision_use_head": False,
        },
        "text_config": {**_TEXT, "model_type": "cohere2"},
    },
    "idefics2": {
        "model_type": "idefics2", "text_config": {**_TEXT, "model_type": "mistral"},
        "perceiver_config": {"resampler_n_latents": 8, "resampler_depth": 2, "resampler_n_heads": 4,
        "resampler_head_dim": 24, "num_key_value_heads": 2},
        "vision_config": {**_SQUARE, "hidden_size": 144, "image_size": 112},
    },
    "lfm2_vl": {
        "model_type": "lfm2_vl", "projector_hidden_size": 320, "text_config": {
            **_TEXT, "model_type": "lfm2", "layer_types": ["conv", "full_attention"],
        },
        "vision_config": {"model_type": "siglip2_vision_model", **_LAYERS, "vision_use_head": False},
    },
    "llama4": {
        "model_type": "llama4", "text_config": {
            **_SIZES, "model_type": "llama4_text", "num_hidden_layers": 4, "vocab_size": 512, "head_dim": 64,
            "num_local_experts": 4, "intermediate_size_mlp": 512,
        },
        "vision_config": {
            "num_hidden_layers": 2, "hidden_size": 320, "num_attention_heads": 4, "intermediate_size": 1280,
            "image_size": 56, "vision_output_dim": 320, "projector_input_dim": 320,
            "projector_output_dim": 320,
        },
    },
    "mllama": {
        "model_type": "mllama", "text_config": {
            **_SIZES, "model_type": "mllama_text_model", "num_hidden_layers": 6, "vocab_size": 512,
            "cross_attention_layers": [1, 3], "pad_token_id": 0,
        },
        "vision_config": {
            "num_hidden_layers": 2, "num_global_layers": 1, "hidden_size": 320, "attention_heads": 4,
            "intermediate_size": 640, "image_size": 56, "intermediate_layers_indices": [0],
            "vision_output_dim": 640,
        },
    },
}  # fmt: skip


@cache
def _built(kind: str) -> Any:
    return built(CONFIGS[kind], "AutoModelForImageTextToText")


@pytest.mark.parametrize("kind", CONFIGS)
def test_parameters_are_those_of_the_modules(kind: str) -> None:
    """All of them; and those of tower and projector, but of Llama 3.2,
    whose layers that see are counted with its tower.
    """
    spec, module = model_from_config(CONFIGS[kind], kind), _built(kind)
    assert spec.param_count == n_parameters(module)
    assert spec.vision is not None
    if kind != "mllama":
        assert spec.vision.param_count == sum(
            tensor.numel()
            for path, tensor in module.named_parameters()
            if not path.startswith(("lm_head", "model.text_model")) and "language_model" not in path
        )


@pytest.mark.parametrize("kind", CONFIGS)
def test_matrices_are_those_that_peft_finds(kind: str) -> None:
    """Names and shapes of every linear layer of the whole model, by the last part of their names."""
    spec, module = model_from_config(CONFIGS[kind], kind), _built(kind)
    linears = [*(linear for linear, _ in spec.linears()), *spec.extra_linears]
    kinds = ("linear", "subclass")
    ours = {(each.name, each.in_features, each.out_features) for each in linears if each.kind in kinds}
    theirs = {
        (path.rpartition(".")[2], each.in_features, each.out_features)
        for path, each in module.named_modules()
        if isinstance(each, torch.nn.Linear) and not path.endswith("lm_head")
    }
    assert ours == theirs
