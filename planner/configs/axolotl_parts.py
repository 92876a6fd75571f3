"""Dtypes, kernels, losses and plugins of Axolotl's files."""

from __future__ import annotations

from planner.configs.keys import Keys
from planner.configs.reading import Reading
from planner.configs.trainer import read_attention
from planner.errors import show

_OWN_PLUGINS = "axolotl.integrations."
# Liger does nothing without its own keys; the others evaluate or track.
_HARMLESS_PLUGINS = ("liger", "cut_cross_entropy", "lm_eval", "swanlab")
_UNCOUNTED_PLUGINS = ("kernels", "grokfast")
# Switch -> keys of Liger's plugin that turn it on.
_KERNELS = {
    "fused_norm": ("liger_rms_norm", "liger_layer_norm", "liger_rms_norm_gated"),
    "fused_mlp": ("liger_swiglu", "liger_glu_activation"),
}
_ADAPTER_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
# Old names of kernels -> ours; one that no formula covers has none.
_OLD_ATTENTION = {
    "flash_attention": "flash2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
    "xformers_attention": "",
    "flex_attention": "",
    "sage_attention": "",
    "s2_attention": "",
}


def read_numerics(keys: Keys, reading: Reading) -> None:
    """Enter the precision; ``bf16: auto`` is the default and follows the card, as the stack says.

    Raises:
        InputFileError: a value that cannot be used.
    """
    pure = {"bfloat16": "bf16", "float16": "fp16"}
    for name, dtype in pure.items():
        if keys.flag(name):
            reading.say("precision", dtype, keys.where(name), "no autocast")
            reading.say("load_dtype", dtype, keys.where(name))
    if keys.flag("float32"):
        reading.say("precision", "fp32", keys.where("float32"))
        reading.say("load_dtype", "fp32", keys.where("float32"))
    auto = keys.get("bf16") in (None, "auto")
    bf16, fp16 = None if auto else _bf16(keys), keys.flag("fp16")
    if reading.value("precision") is not None:
        return
    if bf16:
        reading.say("precision", "bf16-mixed", keys.where("bf16"))
        reading.say("load_dtype", "bf16", keys.where("bf16"))
    elif fp16:
        reading.say("precision", "fp16-mixed", keys.where("fp16"))
        reading.say("load_dtype", "fp16", keys.where("fp16"))
    elif bf16 is False:
        reading.say("precision", "fp32", keys.where("bf16"), "no 16-bit dtype is on")
        reading.say("load_dtype", "fp16" if reading.value("quantization") == "int8" else "fp32", keys.where("bf16"))


def _bf16(keys: Keys) -> bool | None:
    """``full`` is what older files say for true."""
    return True if keys.get("bf16") == "full" else keys.flag("bf16")


def read_attention_keys(keys: Keys, reading: Reading) -> None:
    """Enter the attention kernel, by its key or by those of older versions.

    Raises:
        NotModelledError: a kernel that no formula covers.
    """
    read_attention(keys, "attn_implementation", reading)
    for name, kernel in _OLD_ATTENTION.items():
        if not keys.flag(name):
            continue
        if not kernel:
            raise keys.not_modelled(
                name, "this attention is not modelled; flash_attention, sdp_attention and eager_attention are"
            )
        reading.say("attention", kernel, keys.where(name))


def read_plugins(keys: Keys, reading: Reading) -> None:
    """Enter what plugins change: the loss; one of others' making is reported as ignored.

    Raises:
        NotModelledError: one of Axolotl's own that trains otherwise (Spectrum, distillation, diffusion...).
    """
    for plugin in keys.names("plugins"):
        name = plugin.removeprefix(_OWN_PLUGINS).partition(".")[0] if plugin.startswith(_OWN_PLUGINS) else ""
        if not name:
            reading.ignored.append(f"{keys.where('plugins')}: {show(plugin)}")
        elif name == "cut_cross_entropy" and keys.flag("cut_cross_entropy") is not False:
            reading.say("loss", "liger", keys.where("plugins"))
            reading.remark(keys.where("plugins"), "cut cross entropy is counted as Liger's loss: both keep no full logits")
        elif name in _UNCOUNTED_PLUGINS:
            reading.remark(keys.where("plugins"), f"what {name} changes is not counted")
        elif name not in _HARMLESS_PLUGINS:
            raise keys.not_modelled("plugins", f"what {show(name)} trains is not modelled")


def read_loss(keys: Keys, reading: Reading) -> None:
    """Enter the loss and Liger's kernels.

    Raises:
        NotModelledError: a loss that no formula covers.
    """
    keys.refuse_switched_on(
        {
            "flash_attn_cross_entropy": "flash-attn's loss is not modelled",
            "flash_attn_rms_norm": "flash-attn's norm is not modelled",
            "flash_attn_fuse_mlp": "flash-attn's feed-forward part is not modelled",
            "use_eaft": "this loss is not modelled",
        }
    )
    if keys.flag("liger_fused_linear_cross_entropy"):
        reading.say("loss", "liger", keys.where("liger_fused_linear_cross_entropy"))
    elif keys.flag("chunked_cross_entropy"):
        reading.say("loss", "chunked", keys.where("chunked_cross_entropy"))
    elif keys.flag("liger_cross_entropy"):
        reading.remark(keys.where("liger_cross_entropy"), "counted as the loss of Transformers, which is more")
    for switch, names in _KERNELS.items():
        on = [name for name in names if keys.get(name)]
        if on:
            reading.switch(switch, True, keys.where(on[0]))
    _read_adapter_kernels(keys, reading)
    keys.skip(
        (
            "chunked_cross_entropy_num_chunks",
            "liger_use_token_scaling",
            "liger_kernel_impl",
            "lora_embedding_kernel",
            "liger_rope",
        )
    )


def _read_adapter_kernels(keys: Keys, reading: Reading) -> None:
    """Fused kernels of adapters, which the stack has on: off where a key says so, and where Axolotl leaves them off.

    Source: axolotl 0.19.0 utils/schemas/config.py:1976-2075: on for lora and qlora, but not over 8 bits, with remote code or
    under FSDP1.
    """
    places = [keys.where(name) for name in ("load_in_8bit", "trust_remote_code") if keys.flag(name)]
    if reading.value("sharding") == "fsdp1":
        places.append(reading.said["sharding"].origin)
    if reading.value("method") == "full":
        places = [reading.said["method"].origin]
    off = {name: keys.where(name) for name in _ADAPTER_KERNELS if keys.flag(name) is False}
    if places or "lora_mlp_kernel" in off:
        reading.switch("fused_mlp", False, places[0] if places else off["lora_mlp_kernel"])
    if places or len(off) == len(_ADAPTER_KERNELS):
        reading.switch("adapter_kernels", "eager", places[0] if places else off["lora_qkv_kernel"])
    elif off:
        reading.remark(next(iter(off.values())), "the other adapters' kernels are counted as fused, and these as well")
