"""The step program of vision-language models against the dry run of the real modules:
what is allocated at the peak.

Left out: the mask and the running sum of ``masked_scatter``,
which its kernel takes on a card and the dry run does not; and the tables of positions of some towers, which
the program ignores (1 % of these small models, below 0.1 % of any that is trained).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from planner.allocator.events import AllocEvent, read_jsonl
from planner.catalog.hf_config import model_from_config
from planner.intake.image_tiles import bounded_tokens
from planner.intake.images import images_of, parse_size
from planner.program.ops.sizes import unit_values
from planner.program.step import step_of
from tests.against_libraries.dry_run.test_dry_run import run
from tests.extras import needs
from tests.jobs import job_by

pytestmark = [
    needs("torch", "transformers", "peft", "accelerate"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
    pytest.mark.slow,
]
PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "vision_step.py"
TEXT = {
    "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
}  # fmt: skip
TOKENS = {
    "image_token_id": 4000,
    "video_token_id": 4001,
    "vision_start_token_id": 4002,
    "vision_end_token_id": 4003,
}
ROPE = {"mrope_section": [8, 12, 12]}
_SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 320, "intermediate_size": 1280,
    "num_hidden_layers": 4, "num_attention_heads": 5, "image_size": 280, "patch_size": 14,
    "vision_use_head": False,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "model_type": "qwen2_vl", **TEXT, **TOKENS, "rope_scaling": {"type": "mrope", **ROPE},
        "vision_config": {"depth": 4, "embed_dim": 320, "num_heads": 4, "hidden_size": 256, "patch_size": 14},
    },
    "qwen2_5_vl": {
        "model_type": "qwen2_5_vl", **TEXT, **TOKENS, "rope_scaling": {"type": "mrope", **ROPE},
        "vision_config": {
            "depth": 4, "hidden_size": 320, "intermediate_size": 856, "num_heads": 4, "out_hidden_size": 256,
            "patch_size": 14,
            "fullatt_block_indexes": [3],
        },
    },
    "qwen3_vl": {
        "model_type": "qwen3_vl", "tie_word_embeddings": True, **TOKENS,
        "text_config": {**TEXT, "head_dim": 64,
        "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, **ROPE}},
        "vision_config": {
            "depth": 4, "hidden_size": 288, "intermediate_size": 1076, "num_heads": 4, "out_hidden_size": 256,
            "patch_size": 16,
            "deepstack_visual_indexes": [0, 1, 2],
        },
    },
    "qwen3_5": {
        "model_type": "qwen3_5", **TOKENS, "text_config": {
            **TEXT, "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_interleaved": True,
            "mrope_section": [3, 3, 2]},
        },
        "vision_config": {
            "depth": 4, "hidden_size": 288, "intermediate_size": 1076, "num_heads": 4, "out_hidden_size": 256,
            "patch_size": 16,
        },
    },
    "paddleocr_vl": {
        "model_type": "paddleocr_vl", **TOKENS, "tie_word_embeddings": True,
        "text_config": {
            **TEXT, "head_dim": 64, "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12],
            },
        },
        "vision_config": {
            "hidden_size": 320, "intermediate_size": 1280, "num_hidden_layers": 4, "num_attention_heads": 5,
            "image_size": 280, "patch_size": 14,
        },
    },
    "llava": {
        "model_type": "llava", "image_token_index": 4000, "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {
            "model_type": "clip_vision_model", "hidden_size": 320, "intermediate_size": 1280,
            "num_hidden_layers": 4,
            "num_attention_heads": 5, "image_size": 280, "patch_size": 14,
        },
    },
    "gemma3": {
        "model_type": "gemma3", "image_token_index": 4000, "mm_tokens_per_image": 100,
        "text_config": {
            "model_type": "gemma3_text", **TEXT, "head_dim": 64, "sliding_window": 512,
            "query_pre_attn_scalar": 64,
        },
        "vision_config": _SIGLIP,
    },
    "paligemma": {
        "model_type": "paligemma", "image_token_index": 4000, "projection_dim": 256,
        "text_config": {"model_type": "gemma", **TEXT, "head_dim": 64},
        "vision_config": _SIGLIP,
    },
    "mistral3": {
        "model_type": "mistral3", "image_token_index": 4000, "tie_word_embeddings": False,
        "text_config": {"model_type": "ministral3", **TEXT, "head_dim": 64},
        "vision_config": {
            "model_type": "pixtral", "hidden_size": 320, "intermediate_size": 1280, "num_hidden_layers": 4,
            "num_attention_heads": 5, "image_size": 560, "patch_size": 14, "hidden_act": "silu",
        },
    },
    "lighton_ocr": {
        "model_type": "lighton_ocr", "image_token_id": 4000, "tie_word_embeddings": True,
        "text_config": {"model_type": "qwen3", **TEXT, "head_dim": 64},
        "vision_config": {
            "model_type": "pixtral", "hidden_size": 320, "intermediate_size": 1280, "num_hidden_layers": 4,
            "num_attention_heads": 5, "image_size": 560, "patch_size": 14, "hidden_act": "silu",
            "head_dim": 64,
        },
    },
    "pixtral": {
        "model_type": "llava", "image_token_index": 4000, "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "text_config": {"model_type": "mistral", "sliding_window": None, "head_dim": 64, **TEXT},
        "vision_config": {
            "model_type": "pixtral", "hidden_size": 320, "intermediate_size": 1280, "num_hidden_layers": 4,
            "num_attention_heads": 5, "image_size": 512, "patch_size": 16, "hidden_act": "gelu",
        },
    },
    "internvl": {
        "model_type": "internvl", "tie_word_embeddings": False, "image_token_id": 4000,
        "text_config": {"model_type": "qwen2", **TEXT},
        "vision_config": {
            "model_type": "internvl_vision", "hidden_size": 320, "intermediate_size": 1280,
            "num_hidden_layers": 4, "num_attention_heads": 5, "attention_bias": True,
            "image_size": [224, 224],
        },
    },
    "internvl of 6B": {
        "model_type": "internvl", "tie_word_embeddings": False, "image_token_id": 4000,
        "text_config": {"model_type": "qwen2", **TEXT},
        "vision_config": {
            "model_type": "internvl_vision", "hidden_size": 320, "intermediate_size": 1280,
            "num_hidden_layers": 4, "num_attention_heads": 5, "norm_type": "rms_norm", "use_qk_norm": True,
            "image_size": [224, 224],
        },
    },
    "llama4": {
        "model_type": "llama4", "image_token_index": 4000, "text_config": {
            "model_type": "llama4_text", **TEXT, "head_dim": 64, "num_local_experts": 4,
            "intermediate_size_mlp": 688,
        },
        "vision_config": {
            "hidden_size": 320, "intermediate_size": 1280, "num_hidden_layers": 4, "num_attention_heads": 5,
            "image_size": 112, "vision_output_dim": 512, "projector_input_dim": 512,
            "projector_output_dim": 512,
        },
    },
    "llava_next": {
        "model_type": "llava_next", "image_token_index": 4000,
        "image_grid_pinpoints": [[112, 224], [224, 112], [224, 224], [336, 112], [112, 336]],
        "text_config": {"model_type": "mistral", "sliding_window": None, **TEXT},
        "vision_config": {
            "model_type": "clip_vision_model", "hidden_size": 320, "intermediate_size": 1280,
            "num_hidden_layers": 4, "num_attention_heads": 5, "image_size": 112, "patch_size": 14,
        },
    },
    "glm4v": {
        "model_type": "glm4v", **TOKENS, "text_config": {
            **TEXT, "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
                "mrope_section": [4, 6, 6],
            },
        },
        "vision_config": {
            "depth": 4, "hidden_size": 320, "num_heads": 5, "out_hidden_size": 256,
            "intermediate_size": 688,
        },
    },
    "glm_ocr": {
        "model_type": "glm_ocr", **TOKENS, "text_config": {
            **TEXT, "head_dim": 64, "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0,
                "mrope_section": [8, 12, 12],
            },
        },
        "vision_config": {
            "depth": 4, "hidden_size": 320, "num_heads": 5, "out_hidden_size": 256,
            "intermediate_size": 688,
        },
    },
    "gemma4": {
        "model_type": "gemma4", "audio_config": None,
        "text_config": {
            "model_type": "gemma4_text", **TEXT, "head_dim": 64, "global_head_dim": 128,
            "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        },
        "vision_config": {
            "model_type": "gemma4_vision", "hidden_size": 320, "intermediate_size": 1280,
            "num_hidden_layers": 4, "num_attention_heads": 5, "num_key_value_heads": 5,
            "position_embedding_size": 256,
        },
    },
    "gemma4_unified": {
        "model_type": "gemma4_unified", "audio_config": None, "image_token_id": 4000,
        "text_config": {
            "model_type": "gemma4_unified_text", **TEXT, "head_dim": 64, "global_head_dim": 128,
            "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        },
        "vision_config": {
            "model_type": "gemma4_unified_vision", "mm_embed_dim": 256, "output_proj_dims": 256,
            "mm_posemb_size": 64,
        },
    },
}  # fmt: skip
CONFIGS["gemma4 sees"] = {**CONFIGS["gemma4"], "image_token_id": 4000}
FORWARD = ("gemma4 sees", "gemma4_unified")
"""Towers that are modelled where they are frozen."""
SIZES = {
    "qwen2_vl": "504x336",
    "qwen2_5_vl": "504x336",
    "qwen3_vl": "576x384",
    "qwen3_5": "576x384",
    "glm4v": "504x336",
    "glm_ocr": "504x336",
    "paddleocr_vl": "504x336",
    "llava": "280x280",
}
SIZES |= {"gemma3": "280x280", "llava_next": "200x150", "paligemma": "280x280"}
SIZES |= {"llama4": "300x200"}
SIZES |= {"lighton_ocr": "600x400", "mistral3": "600x400", "pixtral": "320x300"}
SIZES |= dict.fromkeys(FORWARD, "768x768")
SIZES |= dict.fromkeys(("internvl", "internvl of 6B"), "448x224")


def program_peak(flags: dict[str, object]) -> int:
    """Most bytes that the program allocates at once in training."""
    job = job_by(flags)
    stream = step_of(job)
    sizes = stream.sizes({unit: float(count) for unit, count in unit_values(job).items()})
    end = next(begin for begin, phase in stream.phases if phase == "eval")
    level = most = 0
    for event in stream.events[:end]:
        slot = event if event >= 0 else ~event
        if (
            stream.place(slot)[2] == "masked_scatter"
            and sizes[slot] > 2 * int(str(flags["seq"])) * TEXT["hidden_size"]
        ):
            continue
        level += sizes[slot] if event >= 0 else -sizes[slot]
        most = max(most, level)
    return most


# Two images of 24 x 36 patches, with an fp32 number for each feature of a head of Qwen2.5-VL.
ORDERED_BYTES = 2 * 24 * 36 * 80 * 4


def is_position(event: AllocEvent) -> bool:
    """Whether it is of a tower's positions: of the module that makes them,
    or as Qwen2.5-VL puts them into the order of its windows.
    """
    ordered = (event.op, event.n_bytes) == ("aten.index.Tensor", ORDERED_BYTES)
    made = "rotary" in event.module and "language_model" not in event.module
    return made or (ordered and event.module.endswith("visual"))


def trace_peak(events: list[AllocEvent]) -> int:
    """Most bytes that the real program allocates at once, but for a tower's positions;
    what another stream still uses is free when the program lets go of it.
    """
    level = most = 0
    let_go: set[int] = set()
    ignored = {event.block for event in events if event.action == "alloc" and is_position(event)}
    for event in events:
        if event.block in ignored:
            continue
        if event.action == "free" and event.block in let_go:
            let_go.discard(event.block)
            continue
        if event.action == "free_requested":
            let_go.add(event.block)
        level += event.n_bytes if event.action == "alloc" else -event.n_bytes
        most = max(most, level)
    return most


WAYS = [("lora", True, True), ("lora", False, False), ("full", True, True)]
CASES = [(kind, (*way, "sdpa")) for way in WAYS for kind in CONFIGS if way[1] or kind not in FORWARD]
EAGER = [("qwen3_vl", (*WAYS[0], "eager"))]
Way = tuple[str, bool, bool, str]
"""Method, frozen, checkpointing and attention."""


def tiles(kind: str) -> str:
    """Tiles and tokens of an image, its height and width, as the program of the dry run is told."""
    vision = model_from_config(CONFIGS[kind], kind).vision
    assert vision is not None
    width, height = parse_size(SIZES[kind])
    images = images_of(vision.rule, vision, 2, (width, height))
    rule, tokens = vision.rule, images.tokens
    if rule.kind == "bounded":
        columns, rows = bounded_tokens(rule, width, height)
        unit = rule.patch_pixels * rule.merge
        tokens, width, height = columns * rows, columns * unit, rows * unit
    return f"{images.tiles},{tokens},{height},{width}"


def flags_of(kind: str, way: Way) -> dict[str, object]:
    """The same job in words of ``plan``."""
    method, frozen, checkpointing, attention = way
    flags: dict[str, object] = {
        "model": "config.json", "method": method, "gpu": "a100-80-sxm", "seq": 1024,
        "images_per_sample": 2 if kind in SIZES else 0, "gradient_checkpointing": checkpointing,
        "checkpoint_reentrant": False,
        "precision": "bf16-mixed", "load_dtype": "bf16", "attention": attention, "padding": "packed",
        "optimizer": "adamw_torch",
    }  # fmt: skip
    flags |= {"image_size": SIZES[kind]} if kind in SIZES else {}
    flags |= {"freeze": "vision_tower;projector"} if frozen else {}
    # PEFT stops at Llama 4's router, which these are all linears but.
    names = "q_proj;k_proj;v_proj;o_proj;gate_proj;up_proj;down_proj;linear;fc1;fc2;linear_1"
    targets = names if kind == "llama4" else "all-linear"
    adapter = {"lora_rank": 16, "lora_dropout": 0, "lora_targets": targets, "adapter_dtype": "fp32"}
    flags |= adapter if method == "lora" else {}
    return flags


@pytest.mark.parametrize(("kind", "way"), CASES + EAGER)
def test_allocated_is_that_of_the_real_modules(
    kind: str, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 0.5 % (Gemma 4, whose model keeps more around its decoder: 1 %; GLM-4.1V: 2 %), with a frozen
    tower and one that is trained or adapted, checkpointed or not; Gemma 4 with a frozen one alone.

    Scores of images that are written out (``eager``) are there one image at a time.
    """
    method, frozen, checkpointing, attention = way
    monkeypatch.chdir(tmp_path)
    if kind in SIZES and kind not in FORWARD:
        monkeypatch.setenv("TILES", tiles(kind))
    Path("config.json").write_text(json.dumps(CONFIGS[kind]), encoding="utf-8")
    words = [method, str(frozen).lower(), str(checkpointing).lower(), attention]
    words += [] if kind in SIZES else ["text"]
    card = ("--gpu", "a100-80-sxm", "--events", "dry.jsonl")
    code, _, err = run("trace", *card, "--", "python", str(PROGRAM), "config.json", *words)
    assert code == 0, err
    flags = flags_of(kind, way)
    bounds = {"gemma4": 0.01, "glm_ocr": 0.01, "glm4v": 0.02} | dict.fromkeys(FORWARD, 0.01)
    assert program_peak(flags) == pytest.approx(
        trace_peak(read_jsonl("dry.jsonl")), rel=bounds.get(kind, 0.005)
    )
