"""Attention kernels of Axolotl's files, by keys of all ages."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.kernels import read_attention
from planner.configs.shared.keys import Keys
from planner.configs.tools.axolotl.axolotl_age import Age
from planner.configs.tools.axolotl.axolotl_numerics import EMBED_IN, QWEN_1, is_llama

# Names of kernels up to 0.16 -> ours, first come first served (axolotl 0.19.0 utils/schemas/enums.py
# LEGACY_ATTN_FLAG_TO_IMPL); one that no formula covers has none.
OLD_ATTENTION = {
    "s2_attention": "",
    "xformers_attention": "flash2",
    "sage_attention": "",
    "flex_attention": "flex",
    "flash_attention": "flash2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}


def _read_hybrid_attention(keys: Keys, reading: Reading) -> None:
    """Gemma 4, whose global layers have heads too wide for FlashAttention: torch's kernel runs these.

    Source: axolotl 0.19.0 loaders/patch_manager.py _apply_gemma_hybrid_attention,
    monkeypatch/gemma4_hybrid_mask.py, utils/schemas/config.py.
    """
    name = "gemma4_hybrid_attn_impl"
    if not keys.flag(name):
        return
    where = keys.where(name)
    if reading.value("attention") not in (None, "flash2"):
        raise keys.stops(name, "Axolotl refuses it without attn_implementation: flash_attention_2")
    reading.default("attention", "flash2", "axolotl 0.19.0 utils/schemas/config.py: gemma4_hybrid_attn_impl")
    reading.switch("masks_wide_heads", True, where)


def _read_scaled_softmax(keys: Keys, reading: Reading) -> None:
    """Scores that grow with the position, inside FlexAttention's kernel, which keeps nothing more for it.

    Source: axolotl 067b021c8 monkeypatch/scaled_softmax_attn.py, utils/schemas/validation.py
    check_scaling_softmax_requires_flex.
    """
    name = "scaling_softmax"
    if keys.flag(name) and reading.value("attention") != "flex":
        raise keys.stops(
            name, "Axolotl refuses it without FlexAttention: say attn_implementation: flex_attention"
        )
    keys.skip((f"{name}_factor", f"{name}_bias"))


def read_attention_keys(keys: Keys, reading: Reading, *, age: Age) -> None:
    """Enter the attention kernel, and what a file changes about it.

    Raises:
        UsageError: what Axolotl refuses.
        NotModelledError: a kernel that no formula covers.
    """
    _read_flash_optimum(keys, reading)
    if keys.flag("fused_attn_kernel"):
        reading.switch("fused_head_norms", "qwen3_too", keys.where("fused_attn_kernel"))
    _read_kernel(keys, reading, age=age)
    _read_scaled_softmax(keys, reading)
    _read_hybrid_attention(keys, reading)
    if age.of_2023:
        _read_attention_of_2023(keys, reading)


def _read_kernel(keys: Keys, reading: Reading, *, age: Age) -> None:
    """Enter the kernel, by its key or by those of older versions; ``old``: the file is of 0.8 or before.

    Where both are given the new one counts: axolotl d1de6f5f3 (0.12) and 5eb265513 (2026-02) loaders/model.py
    _set_attention_config; both are refused since e4032fc90 (2026-05, 0.17).
    """
    on = [name for name in OLD_ATTENTION if keys.flag(name)]
    if keys.get("attn_implementation") == "xformers":
        _refuse_xformers(keys, "attn_implementation")
        _say_xformers(reading, keys.where("attn_implementation"))
    else:
        read_attention(keys, "attn_implementation", reading)
    if not on:
        if QWEN_1.search(str(keys.get("base_model") or "").lower()) and not keys.has("attn_implementation"):
            place = (
                "Qwen-7B modeling_qwen.py: use_flash_attn auto takes flash-attn in 16 bits; "
                "axolotl requires it"
            )
            reading.default("attention", "flash2", place)
        return
    name = on[0]
    if keys.has("attn_implementation"):
        reading.remark(
            keys.where(name),
            "has no effect beside attn_implementation up to Axolotl 0.16; later ones refuse both",
        )
        return
    if not OLD_ATTENTION[name]:
        raise keys.not_modelled(
            name, "this attention is not modelled; flash_attention, sdp_attention and eager_attention are"
        )
    if name != "xformers_attention":
        reading.say("attention", OLD_ATTENTION[name], keys.where(name))
        return
    if age.old and not is_llama(keys):
        # axolotl 0.8.0 utils/models.py:668-720 patches Llama's attention only.
        reading.remark(keys.where(name), "has no effect: up to Axolotl 0.8 it changes Llama models only")
        return
    if not age.old:
        _refuse_xformers(keys, name)
    _say_xformers(reading, keys.where(name))


def _refuse_xformers(keys: Keys, name: str) -> None:
    """Source: axolotl 0.13.2 and 0.19.0 loaders/patch_manager.py _patch_llama_derived_model."""
    if is_llama(keys) and not keys.flag("sample_packing"):
        raise keys.stops(
            name,
            "Axolotl's own code for xFormers and a Llama without sample_packing reads names that "
            "Transformers has no more from 4.48 on, and stops; flash_attention_2 and sample_packing: true "
            "run",
        )


def names_attention(keys: Keys) -> bool:
    """Whether a file names a kernel; Axolotl itself has no default."""
    return keys.has("attn_implementation") or any(keys.flag(name) for name in OLD_ATTENTION)


def _read_attention_of_2023(keys: Keys, reading: Reading) -> None:
    """Transformers 4.35 (requirements.txt of 2023-11) has no ``sdpa``: attention is eager,
    but for Falcon's without ALiBi, which calls torch's own.

    Source: transformers 4.35.2 models/falcon/modeling_falcon.py FalconAttention.forward.
    """
    name = str(keys.get("base_model") or "").lower()
    if "falcon" in name and "falcon-rw" not in name:
        place = "transformers 4.35.2 models/falcon/modeling_falcon.py, which calls torch's attention"
        reading.default("attention", "sdpa", place)
        return
    place = "axolotl of 2023-11 requirements.txt: transformers 4.35.2, which has no sdpa"
    reading.default("attention", "eager", place)


def _read_flash_optimum(keys: Keys, reading: Reading) -> None:
    """BetterTransformer, whose training calls torch's attention without a mask.

    Source: optimum 1.13.2 and 1.23.3 bettertransformer/models/attention.py gpt2_wrapped_scaled_dot_product;
    axolotl 0.8.0 utils/models.py.
    """
    if not keys.flag("flash_optimum"):
        return
    if not EMBED_IN.search(str(keys.get("base_model") or "").lower()):
        raise keys.not_modelled("flash_optimum", "BetterTransformer is modelled for GPT-NeoX and Pythia only")
    where = keys.where("flash_optimum")
    reading.say("attention", "sdpa", where, "BetterTransformer calls torch's attention")
    # It does so for classes of models that Transformers itself gave it later.
    reading.switch("model_code", "transformers-5", where)


def _say_xformers(reading: Reading, origin: str) -> None:
    """Like FlashAttention it saves inputs, output and one number per row, but its keys and values have all
    heads (axolotl 0.19.0 monkeypatch/attention/xformers.py, llama_attn_hijack_xformers.py).
    """
    reading.say("attention", "flash2", origin)
    reading.remark(
        origin,
        "xFormers is counted as FlashAttention 2: it keeps keys for all heads, up to 3 % more memory, and "
        "takes another time",
    )
