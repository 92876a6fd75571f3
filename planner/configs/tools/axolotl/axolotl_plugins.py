"""Plugins of Axolotl's files, and the keys that only a plugin reads: kernels of experts, diffusion, pruning.

Source: axolotl 067b021c8 (2026-07-24) integrations/*/args.py.  A plugin's keys join the schema where
``plugins`` names it (integrations/config.py merge_input_args); elsewhere validation drops them.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import texts_in
from planner.configs.shared.keys import Keys
from planner.configs.tools.axolotl.axolotl_age import Age
from planner.errors import show

_OWN = "axolotl.integrations."
_RECIPE = "recipe"
# Liger, diffusion and expert parallelism are read elsewhere; the others evaluate or track.
_HARMLESS = ("liger", "cut_cross_entropy", "diffusion", "expert_parallel", "lm_eval", "swanlab")
_KEYS = texts_in("axolotl.toml", "unmodelled_of_plugins")

_SWITCHES = {"scattermoe": "use_scattermoe", "sonicmoe": "use_sonicmoe"}
_NO_KERNELS = ("eager", "builtin")
_UNMODELLED = {
    "use_dsv4_kernels": "kernels of DeepSeek V4 are not modelled",
    "use_glm_dsa_kernels": "kernels of GLM's sparse attention are not modelled",
}


TERNARY = "use_onebitllms"

_PLUGIN = "axolotl.integrations.diffusion."


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
    section = keys.section("llmcompressor")
    recipe = section.get(_RECIPE)
    if not isinstance(recipe, dict) or recipe.get("modifiers"):
        raise keys.not_modelled("plugins", "masks of pruned weights are not modelled")
    text = "prunes nothing: llmcompressor since 0.10 knows no stages, and finds no list of modifiers"
    reading.remark(section.where(_RECIPE), text)
    section.skip((_RECIPE, "save_compressed"))


def read_kernels(keys: Keys, reading: Reading) -> None:
    """Enter whose kernels run the experts.  What is left unsaid of ``experts_implementation`` is ``eager``
    under this plugin.  Modes and backends for NVFP4 change nothing of another base.

    Source: axolotl 0.19.0 integrations/kernels/args.py KernelsArgs, plugin.py KernelsPlugin.pre_model_load.

    Raises:
        UsageError: settings that exclude each other.
        NotModelledError: other kernels than ScatterMoE's with all experts at once.
    """
    backend = _backend(keys)
    keys.refuse_switched_on(_UNMODELLED)
    if backend == "scattermoe":
        if keys.flag("moe_bnb_fast") is False:
            raise keys.not_modelled("moe_bnb_fast", "experts that are expanded in pieces are not modelled")
        reading.switch("mixture_code", "scattermoe", keys.where("plugins"))
        return
    if backend == "sonicmoe":
        raise keys.not_modelled("plugins", "SonicMoE's kernels are not modelled; use_scattermoe: true is")
    # Beside ternary weights mixtures are refused later, and without experts the plugin does nothing.
    if keys.text("experts_implementation") != "grouped_mm" and not keys.flag(TERNARY):
        raise keys.not_modelled(
            "plugins",
            "without use_scattermoe this plugin lets experts run one after the other, which is not modelled: "
            "take it out, or say experts_implementation: grouped_mm",
        )


def _backend(keys: Keys) -> str:
    """``scattermoe``, ``sonicmoe`` or neither."""
    on = [name for name, switch in _SWITCHES.items() if keys.flag(switch)]
    said = keys.text("expert_backend")
    if said is not None and said.lower() not in (*_SWITCHES, *_NO_KERNELS):
        raise keys.stops(
            "expert_backend", f"{show(said)} is none of Axolotl's: say scattermoe, sonicmoe or eager"
        )
    if len(on) > 1 or (said is not None and any(name != said.lower() for name in on)):
        raise keys.stops(_SWITCHES[on[0]], "Axolotl refuses it beside another backend; say one of them")
    return on[0] if on else (said or "").lower()


def read_diffusion(keys: Keys, reading: Reading, *, age: Age) -> None:
    """Diffusion of text: some tokens are masked, once in many steps nearly all of a row, and the model, which
    sees the whole row, names them.

    The model gets no labels, so losses that its own code fuses do nothing, and all layers get one mask.
    Source: axolotl 067b021c8 (2026-07-24) integrations/diffusion/trainer.py DiffusionTrainer and utils.py
    create_bidirectional_attention_mask, the same in 0.19.0 but for what the mask hides.

    Raises:
        NotModelledError: versions before 0.14, attention that takes no such mask, and samples that are
            divided.
    """
    if not any(name.startswith(_PLUGIN) for name in keys.names("plugins")):
        return
    if not age.today:
        raise keys.not_modelled("plugins", "diffusion of Axolotl before 0.14 is not modelled")
    if reading.value("attention") not in (None, "sdpa"):
        raise keys.not_modelled("plugins", "diffusion is modelled for attn_implementation: sdpa alone")
    if (keys.count("context_parallel_size") or 1) > 1:
        raise keys.not_modelled("plugins", "diffusion of divided samples is not modelled")
    where = keys.where("plugins")
    reading.said.pop("loss", None)
    for name in ("loss_forward", "loss_backward", "cut_cross_entropy"):
        reading.switches.pop(name, None)
    reading.switch("loss_weights", "masked_tokens", where)
    reading.switch("packed_mask", "rows", where)
