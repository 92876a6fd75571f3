"""Checkpoints that Unsloth loads in place of the one that is named.

Source: unsloth 2026.10.9 models/mapper.py (``FLOAT_TO_INT_MAPPER``, ``INT_TO_FLOAT_MAPPER``) and
models/loader_utils.py (``get_model_name``, ``BAD_MAPPINGS``).
"""

from __future__ import annotations

import re


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Models of which it has a 4-bit checkpoint with some matrices left whole (unsloth/NAME-unsloth-bnb-4bit), and
# loads that in 4 bits.  Of all others a 4-bit base is packed whole, be it on the way.
_PARTLY_PACKED = {
    name.lower(): name
    for name in _names("""
    Apertus-70B-Instruct-2509 Apertus-8B-Instruct-2509 aya-vision-32b aya-vision-8b
    c4ai-command-a-03-2025 DeepScaleR-1.5B-Preview DeepSeek-R1-0528-Qwen3-8B
    DeepSeek-R1-Distill-Llama-8B DeepSeek-R1-Distill-Qwen-1.5B DeepSeek-R1-Distill-Qwen-14B
    DeepSeek-R1-Distill-Qwen-7B Devstral-Small-2505 Devstral-Small-2507 functiongemma-270m-it
    gemma-3-12b-it gemma-3-12b-pt gemma-3-1b-it gemma-3-1b-pt gemma-3-270m gemma-3-270m-it
    gemma-3-27b-it gemma-3-27b-pt gemma-3-4b-it gemma-3-4b-pt gemma-3n-E2B gemma-3n-E2B-it gemma-3n-E4B
    gemma-3n-E4B-it gemma-4-31B gemma-4-31B-it gemma-4-E2B gemma-4-E2B-it gemma-4-E4B gemma-4-E4B-it
    gpt-oss-120b gpt-oss-20b granite-3.2-2b-instruct granite-3.2-8b-instruct granite-4.0-1b
    granite-4.0-1b-base granite-4.0-350m granite-4.0-350m-base granite-4.0-h-1b granite-4.0-h-1b-base
    granite-4.0-h-350m granite-4.0-h-350m-base granite-4.0-h-micro granite-4.0-h-micro-base
    granite-4.0-micro granite-4.0-micro-base granite-vision-3.2-2b LFM2-1.2B Llama-3.1-8B
    Llama-3.1-8B-Instruct Llama-3.2-11B-Vision Llama-3.2-11B-Vision-Instruct Llama-3.2-1B
    Llama-3.2-1B-Instruct Llama-3.2-3B Llama-3.2-3B-Instruct Llama-3.3-70B-Instruct Magistral-Small-2506
    Magistral-Small-2507 Magistral-Small-2509 medgemma-27b-text-it medgemma-4b-it Meta-Llama-3.1-8B
    Meta-Llama-3.1-8B-Instruct Ministral-3-14B-Base-2512 Ministral-3-14B-Instruct-2512
    Ministral-3-14B-Reasoning-2512 Ministral-3-3B-Base-2512 Ministral-3-3B-Instruct-2512
    Ministral-3-3B-Reasoning-2512 Ministral-3-8B-Base-2512 Ministral-3-8B-Instruct-2512
    Ministral-3-8B-Reasoning-2512 Mistral-Small-24B-Base-2501 Mistral-Small-24B-Instruct-2501
    Mistral-Small-3.1-24B-Base-2503 Mistral-Small-3.1-24B-Instruct-2503
    Mistral-Small-3.2-24B-Instruct-2506 Mixtral-8x7B-Instruct-v0.1 Mixtral-8x7B-v0.1 Muse-Glimmer-30B
    OLMo-2-0325-32B-Instruct Olmo-3-32B-Think Olmo-3-7B-Instruct Olmo-3-7B-Think orpheus-3b-0.1-ft
    orpheus-3b-0.1-pretrained phi-4 Phi-4-mini-instruct phi-4-mini-reasoning phi-4-reasoning
    phi-4-reasoning-plus Pixtral-12B-2409 Qwen2-VL-2B-Instruct Qwen2-VL-7B-Instruct Qwen2.5-0.5B
    Qwen2.5-0.5B-Instruct Qwen2.5-1.5B Qwen2.5-1.5B-Instruct Qwen2.5-14B Qwen2.5-14B-Instruct Qwen2.5-3B
    Qwen2.5-3B-Instruct Qwen2.5-7B Qwen2.5-7B-Instruct Qwen2.5-VL-32B-Instruct Qwen2.5-VL-3B-Instruct
    Qwen2.5-VL-72B-Instruct Qwen2.5-VL-7B-Instruct Qwen3-0.6B Qwen3-0.6B-Base Qwen3-1.7B Qwen3-1.7B-Base
    Qwen3-14B Qwen3-14B-Base Qwen3-4B Qwen3-4B-Base Qwen3-4B-Instruct-2507 Qwen3-4B-Thinking-2507
    Qwen3-8B Qwen3-8B-Base Qwen3-VL-2B-Instruct Qwen3-VL-2B-Thinking Qwen3-VL-32B-Instruct
    Qwen3-VL-32B-Thinking Qwen3-VL-4B-Instruct Qwen3-VL-4B-Thinking Qwen3-VL-8B-Instruct
    Qwen3-VL-8B-Thinking Qwen3.8-27B QwQ-32B reka-flash-3
    """)
}
# Whose names it replaces.
_OWNERS = _names("""
    agentica-org allenai canopylabs cohereforai deepseek-ai google ibm-granite liquidai meta-llama
    meta-models microsoft mistralai open-thoughts openai qwen rekaai swiss-ai unsloth
    """)
_PACKED = re.compile(r"(?:-unsloth)?-bnb-4bit$", re.IGNORECASE)


def loaded_name(name: str, *, four_bits: bool) -> str:
    """The checkpoint that Unsloth loads where ``name`` is asked for.

    ``four_bits``: ``load_in_4bit``.  Without it a packed checkpoint of its own is not loaded either, but the
    one that was packed.
    """
    owner, slash, model = name.partition("/")
    if not slash or "/" in model or owner.lower() not in _OWNERS:
        return name
    plain = _PACKED.sub("", model)
    if not four_bits:
        return f"unsloth/{plain}" if owner.lower() == "unsloth" else name
    own = _PARTLY_PACKED.get(plain.lower())
    return name if own is None else f"unsloth/{own}-unsloth-bnb-4bit"
