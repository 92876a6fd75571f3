"""One reader per ``model_type``: ``config.json`` fields to a :class:`~planner.domain.model.ModelSpec`.

Each module of its folders serves a family and exports ``READERS``.
A new architecture is a new function there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from planner.catalog.architectures.config_fields import ConfigFields
from planner.domain.model import ModelSpec
from planner.words import words

Reader = Callable[[ConfigFields], ModelSpec]

# Which module serves which model_type: a table, so that reading one model imports one module.
_MODULES = {
    "dense.llama_family": "llama granite mistral qwen2 qwen3 olmo2 olmo3 smollm3",
    "dense.llama_kin": "starcoder2 seed_oss arcee ministral",
    "dense.later_blocks": "cohere2 exaone4 hunyuan_v1_dense olmo ministral3 apertus ernie4_5",
    "dense.one_change": "cwm hyperclovax helium iquestcoder jais2 muse_glimmer_text nanochat vaultgemma",
    "dense.gemma_family": "gemma gemma2 gemma3_text gemma3",
    "dense.gemma3n": "gemma3n_text",
    "dense.gemma4": "gemma4_text gemma4_unified_text",
    "mixtures.moe_family": "mixtral olmoe granitemoe qwen2_moe qwen3_moe phimoe flex_olmo",
    "mixtures.later_mixtures": (
        "glm4_moe glm4v_moe_text minimax_m2 ernie4_5_moe hunyuan_v1_moe afmoe solar_open hy_v3 exaone_moe"
    ),
    "mixtures.dbrx": "dbrx",
    "mixtures.llama4": "llama4_text llama4",
    "mixtures.deepseek_family": "deepseek_v2 deepseek_v3 glm4_moe_lite mistral4 minicpm3 dots1 youtu",
    "dense.phi3_family": "phi3",
    "mixtures.gpt_oss": "gpt_oss",
    "dense.internlm": "internlm internlm2 internlm3",
    "older.gpt_family": "gpt2 gptj gpt_neox opt",
    "older.gpt_kin": "gpt_neo gpt_bigcode codegen biogpt",
    "older.bloom_falcon_mpt": "bloom falcon mpt",
    "older.llm_foundry": "mpt_causal_lm mosaic_gpt",
    "older.from_scratch": "gpt_from_scratch",
    "older.btlm": "btlm",
    "dense.phi": "phi",
    "dense.stablelm": "stablelm cohere nemotron",
    "dense.glm": "glm glm4 glm4v_text glm_ocr_text",
    "hybrids.short_conv": "lfm2 lfm2_moe",
    "hybrids.mamba2": "bamba falcon_h1 granitemoehybrid mamba2 nemotron_h",
    "hybrids.mamba1": "falcon_mamba mamba",
    "hybrids.jamba": "jamba",
    "hybrids.gated_delta": "qwen3_5_text qwen3_5 qwen3_5_moe_text qwen3_5_moe qwen3_next",
    "vision.glm_vision": "glm4v glm46v glm4v_moe glm_ocr",
    "vision.llava": "llava",
    "vision.paddle_vision": "paddleocr_vl",
    "vision.paligemma": "paligemma",
    "vision.pixtral_vision": "lighton_ocr mistral3",
    "vision.counted_towers": "gemma3n gemma4 gemma4_unified mllama muse_glimmer voxtral",
    "vision.tiled_vision": "internvl llava_next llava_next_video llava_onevision smolvlm idefics3",
    "vision.text_alone": "aya_vision idefics2 lfm2_vl",
    "vision.qwen_vision": "qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe",
    "older.remote_code": "baichuan chatglm qwen minicpm",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in words(names)}


def supported_architectures() -> tuple[str, ...]:
    """Every ``model_type`` that has a reader, sorted."""
    return tuple(sorted(_MODULE_OF))


def reader_for(model_type: str) -> Reader | None:
    """The reader of ``model_type``, or ``None`` if the architecture is not modelled."""
    if model_type not in _MODULE_OF:
        return None
    reader: Reader = importlib.import_module(f"{__name__}.{_MODULE_OF[model_type]}").READERS[model_type]
    return reader
