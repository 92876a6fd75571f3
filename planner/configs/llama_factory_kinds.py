"""Names by which files of LLaMA-Factory that are not read are told."""

from __future__ import annotations

V1 = frozenset(
    {
        "dist_config",
        "kernel_config",
        "peft_config",
        "quant_config",
        "init_config",
        "optim_config",
        "lr_scheduler_config",
        "model_class",
        "sample_backend",
        "train_dataset",
        "batching_strategy",
        "batching_workers",
        "enable_activation_checkpointing",
        "global_batch_size",
    }
)
"""Keys of v1: llamafactory 0.9.5 v1/config/model_args.py, training_args.py, data_args.py and sample_args.py."""

_VISION_TEMPLATES = """
    dots_ocr ernie_vl gemma3 gemma3n gemma4 gemma4n glm4_5v glm4v glm_ocr granite3_vision intern_s1 intern_vl keye_vl kimi_vl
    lfm2_vl llama4 llava llava_next llava_next_llama3 llava_next_mistral llava_next_qwen llava_next_video llava_next_video_mistral
    llava_next_video_yi llava_next_yi mimo_vl minicpm_o minicpm_v minicpm_v_4_6 ministral3 mistral_small mllama paligemma
    paligemma_chat pixtral qwen2_audio qwen2_omni qwen2_vl qwen3_5 qwen3_5_nothink qwen3_6 qwen3_omni qwen3_omni_nothink qwen3_vl
    qwen3_vl_nothink video_llava yi_vl youtu_vl
"""
VISION_TEMPLATES = frozenset(_VISION_TEMPLATES.split())
"""Templates with a plugin for images or sound: llamafactory 0.9.5 data/template.py, ``mm_plugin=get_mm_plugin``."""
