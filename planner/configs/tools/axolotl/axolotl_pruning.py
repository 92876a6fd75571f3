"""Axolotl's fine-tuning of pruned weights, by llmcompressor's modifiers.

Source: axolotl 067b021c8 (2026-07-24) integrations/llm_compressor/plugin.py LLMCompressorCallbackHandler;
llmcompressor 0.10.0 and 0.14.0.1 recipe/recipe.py Recipe, core/lifecycle.py initialize.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys

_RECIPE = "recipe"


def read_pruning(keys: Keys, reading: Reading) -> None:
    """Whether a recipe masks weights: its modifiers are a list of that name alone, and stages are dropped.

    Since 2026-04 Axolotl asks for llmcompressor 0.10, whose recipes know no stages: a dry run says
    ``initialized for 0 modifiers``, and allocates what it does without the plugin.

    Raises:
        NotModelledError: a recipe in another file, or with such a list.
    """
    section = keys.part("llmcompressor") or Keys(keys.path, {})
    recipe = section.get(_RECIPE)
    if not isinstance(recipe, dict) or recipe.get("modifiers"):
        raise keys.not_modelled("plugins", "masks of pruned weights are not modelled")
    text = "prunes nothing: llmcompressor since 0.10 knows no stages, and finds no list of modifiers"
    reading.remark(section.where(_RECIPE), text)
    section.skip((_RECIPE, "save_compressed"))
