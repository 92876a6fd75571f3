"""Plugins of Axolotl's files, and the keys that only a plugin reads.

Source: axolotl 067b021c8 (2026-07-24) integrations/*/args.py.  A plugin's keys join the schema where
``plugins`` names it (integrations/config.py merge_input_args); elsewhere validation drops them.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import texts_in
from planner.configs.shared.keys import Keys
from planner.configs.tools.axolotl.axolotl_age import Age
from planner.configs.tools.axolotl.axolotl_kernels import read_kernels
from planner.errors import show

_OWN = "axolotl.integrations."
_RECIPE = "recipe"
# Liger, diffusion and expert parallelism are read elsewhere; the others evaluate or track.
_HARMLESS = ("liger", "cut_cross_entropy", "diffusion", "expert_parallel", "lm_eval", "swanlab")
_KEYS = texts_in("axolotl.toml", "unmodelled_of_plugins")


def read_plugins(keys: Keys, reading: Reading, *, age: Age) -> None:
    """Enter what plugins change: the loss, and kernels of experts.

    Raises:
        NotModelledError: one of Axolotl's own that trains otherwise (Spectrum, distillation,
            GrokFast, which keeps old gradients...), or one of others' making, which may change anything.
    """
    named = [_name(keys, plugin) for plugin in keys.names("plugins")]
    for name in named:
        if name == "cut_cross_entropy" and keys.flag("cut_cross_entropy") is not False:
            reading.say("loss", "liger", keys.where("plugins"), "of which a switch makes cut cross entropy")
            reading.switch("cut_cross_entropy", True, keys.where("plugins"))
        elif name == "kernels":
            read_kernels(keys, reading)
        elif name == "llm_compressor" and age.today:
            read_pruning(keys, reading)
        elif name not in _HARMLESS:
            raise keys.not_modelled("plugins", f"what {show(name)} trains is not modelled")
    for plugin, names in _KEYS.items():
        _read_keys(keys, reading, tuple(names.split()), "" if plugin in named else plugin)


def _name(keys: Keys, plugin: str) -> str:
    """Folder of one of Axolotl's own."""
    name = plugin.removeprefix(_OWN).partition(".")[0] if plugin.startswith(_OWN) else ""
    if not name:
        raise keys.not_modelled(
            "plugins", f"{show(plugin)} is not known; take it out if it changes nothing of the training"
        )
    return name


def _read_keys(keys: Keys, reading: Reading, names: tuple[str, ...], missing: str) -> None:
    """Keys of one plugin; ``missing``: its name where ``plugins`` leaves it out."""
    on = [name for name in names if keys.get(name)]
    if on and missing:
        reading.remark(keys.where(on[0]), f"has no effect: plugins does not name {_OWN}{missing}")
    keys.skip(names)


def read_pruning(keys: Keys, reading: Reading) -> None:
    """Whether a recipe masks weights: its modifiers are a list of that name alone, and stages are dropped.

    Since 2026-04 Axolotl asks for llmcompressor 0.10, whose recipes know no stages: a dry run says
    ``initialized for 0 modifiers``, and allocates what it does without the plugin.

    Source: axolotl 067b021c8 (2026-07-24) integrations/llm_compressor/plugin.py LLMCompressorCallbackHandler;
    llmcompressor 0.10.0 and 0.14.0.1 recipe/recipe.py Recipe, core/lifecycle.py initialize.

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
