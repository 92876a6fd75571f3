"""Dtypes and losses of Axolotl's files, and matrices that are rounded as if quantised (``qat``)."""

from __future__ import annotations

import re

from planner.catalog.models import entry_named_in
from planner.configs.said_by_file import Reading
from planner.configs.shared.kernels import say_cross_entropy
from planner.configs.shared.keys import Keys
from planner.configs.tools.axolotl.axolotl_age import Age, is_fsdp2
from planner.configs.tools.axolotl.axolotl_plugins import TERNARY
from planner.errors import show

_PREFERENCES = ("dpo", "kto", "orpo", "simpo")
# Switch -> keys of Liger's plugin that turn it on.
_KERNELS = {
    "fused_norm": ("liger_rms_norm", "liger_layer_norm", "liger_rms_norm_gated"),
    "fused_mlp": ("liger_swiglu", "liger_glu_activation"),
}
_LIGER = (
    "liger_fused_linear_cross_entropy",
    "liger_cross_entropy",
    *(name for names in _KERNELS.values() for name in names),
)
_LOSSES = ("cut_cross_entropy", "chunked_cross_entropy", *_LIGER[:2])
"""What takes the place of the model's loss."""
_FLASH_PARTS = {
    "flash_attn_cross_entropy": "flash-attn's loss is not modelled",
    "flash_attn_fuse_qkv": "flash-attn's fused projections are not modelled",
}
# flash-attn 2.8.3 ops/layer_norm.py saves the input and a number per row, and its extension is built apart;
# xFormers 0.0.33 csrc/swiglu/swiglu_packedw.cpp saves the input and both products.  What they replace keeps
# as much and more.
_PLAIN_PARTS = {
    "flash_attn_rms_norm": (
        "counted as the plain norm, which needs as much or more, and which it is without dropout_layer_norm"
    ),
    "flash_attn_fuse_mlp": "counted as the plain feed-forward part, which needs as much as xFormers' or more",
}
# Models whose token table is named wte; those of them whose head is the table; and those with embed_in, which
# Axolotl has known since 2024-01 (pull request 1083).
QWEN_1 = re.compile(r"(?:^|/)qwen-\d")
_WTE = re.compile(r"(?:^|/)(?:qwen-\d|gpt-?j\b)")
_GPT_2 = re.compile(r"(?:^|/)(?:cerebras-gpt|gpt-?2)\b")
EMBED_IN = re.compile(r"pythia|gpt-neox|redpajama-incite|dolly-v2")
# What stays in fp32 of each, and what is counted so beside it.
_STAYS = (
    (_WTE, "token table and norms", "its head is"),
    (_GPT_2, "positions and norms", "its token table is"),
    (EMBED_IN, "token table and head", "its norms are"),
)
_NEMOTRON_H = re.compile(r"nemotron-h-|nemotron-nano-\d+b-v2|nemotron-3-")
# Architectures jamba, qwen2_moe and nemotron_h.
_STORED_IN_FP32 = re.compile(rf"jamba|qwen1\.5-moe|qwen2-57b-a14b|{_NEMOTRON_H.pattern}")

_GROUP = 32
_NVFP4 = (
    "Axolotl 0.19.0 stops at nvfp4, because torchao 0.17.0 rounds nothing for NVFP4WeightOnlyConfig; int8 "
    "with int4 weights is modelled"
)


def read_numerics(keys: Keys, reading: Reading, *, age: Age) -> None:
    """Enter the precision.  ``bf16`` is auto where the file leaves the key out, and off where it is empty.

    ``auto`` follows the card, as the stack says; beside ``fp16: true`` it is off, but up to 0.8.
    ``bf16: full`` means no autocast; schemas since 2024-03 refuse it.
    Source: axolotl 0.19.0 utils/config/__init__.py resolve_dtype, core/builders/base.py:271-278,
    utils/schemas/config.py bf16; 0.8.0 core/trainer_builder.py:336-341; 501b4d137 (2023-11)
    utils/config.py:67-76, where nothing is the default.

    Raises:
        InputFileError: a value that cannot be used.
        UsageError: one of older versions than the file's.
    """
    value, where = keys.get("bf16"), keys.where("bf16")
    if value == "full" and not age.old:
        raise keys.stops("bf16", "Axolotl since 2024-03 refuses full; say true")
    fp16, half, alone = keys.flag("fp16"), keys.flag("float16"), keys.flag("bfloat16")
    keys.flag("float32")
    is_auto = value == "auto" or not (keys.holds("bf16") or age.of_2023)
    if is_auto and (age.old or not fp16):
        return
    if not is_auto and value != "full" and keys.flag("bf16"):
        _say_precision(reading, "bf16-mixed", "bf16", where)
    elif value == "full" or alone:
        name = "bf16" if value == "full" else "bfloat16"
        _say_precision(reading, "bf16" if age.old else "bf16-mixed", "bf16", keys.where(name))
    elif fp16:
        _say_precision(reading, "fp16-mixed", "fp16", keys.where("fp16"))
    elif half:
        _say_precision(reading, "fp16", "fp16", keys.where("float16"))
    else:
        stored = "fp16" if reading.value("quantization") == "int8" else "fp32"
        _say_precision(reading, "fp32", stored, where)


def _say_precision(reading: Reading, precision: str, stored: str, where: str) -> None:
    reading.say("precision", precision, where, "" if "-mixed" in precision else "no autocast")
    reading.say("load_dtype", stored, where)


def stores_in_fp32(keys: Keys) -> bool:
    """Whether Axolotl packs the 4-bit weights of this model as fp32 where nothing divides them.

    Source: axolotl 0.19.0 loaders/model.py _set_quantization_config, since 2024-04 in utils/models.py.
    """
    return _STORED_IN_FP32.search(str(keys.get("base_model") or "").lower()) is not None


def refuse_8bit_in_ram(keys: Keys, reading: Reading) -> None:
    """Axolotl 0.5 to 0.19 (utils/schemas/validation.py check_fsdp_offload_w_8bit_optimizer) says so itself.

    Raises:
        UsageError: an 8-bit optimizer whose weights FSDP1 has in host RAM.
    """
    optimizer = keys.text("optimizer") or ""
    if "8bit" in optimizer and reading.value("offload") and reading.value("sharding") in ("fsdp1", "hsdp1"):
        raise keys.stops(
            "optimizer", f"Axolotl refuses {show(optimizer)} beside offload of FSDP1; say adamw_torch"
        )


def refuse_tiles(keys: Keys, *, age: Age) -> None:
    """Feed-forward parts that run over tiles of a sample, whose backward pass FSDP2 does not survive.

    When a layer's tiles have gone back Axolotl frees all its weights, before its attention goes back: a real
    run of two processes on the CPU ends there by a segmentation fault, and without tiles does not.
    Source: axolotl 067b021c8 (2026-07-24) monkeypatch/tiled_mlp/base.py _defer_fsdp2_reshard, since
    9a79b6801 (2026-05-28); torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py reshard.

    Raises:
        UsageError: layers that FSDP2 divides.
        NotModelledError: any others.
    """
    divides = bool(keys.get("fsdp_config") or keys.get("fsdp"))
    if keys.flag("tiled_mlp") and age.today and divides and is_fsdp2(keys):
        raise keys.stops(
            "tiled_mlp",
            "under FSDP2 Axolotl frees a layer's weights before its attention has gone back, and stops; "
            "leave it out",
        )
    why = "a part in tiles is not modelled: leave it out, or ask measure trace -- axolotl train FILE"
    keys.refuse_switched_on({"tiled_mlp": why})


def read_stored_weights(keys: Keys, reading: Reading) -> None:
    """Packed weights of a checkpoint are turned to 16 bits where the file says so.

    Source: axolotl 0.19.0 loaders/model.py _set_quantization_config; transformers 5.16
    quantizers/quantizer_mxfp4.py and quantizer_finegrained_fp8.py is_trainable.

    Raises:
        NotModelledError: they stay packed.
    """
    name = "model_quantization_config"
    details = keys.part(f"{name}_kwargs")
    unpacks = details is not None and details.flag("dequantize")
    if keys.get(name) and not unpacks:
        raise keys.not_modelled(name, "packed weights do not train: say dequantize: true in its kwargs")
    if keys.get(name) and reading.value("quantization") is None:
        reading.say("quantization", "none", keys.where(name))


def refuse_packed_mixers(keys: Keys, name: str) -> None:
    """Jamba in 8 bits, whose Mamba layers Axolotl leaves in 16 (0.19.0 loaders/model.py, since 2024-05);
    ``name``: of what packs.

    Raises:
        NotModelledError: it is one.
    """
    model = str(keys.get("base_model") or "").lower()
    if "jamba" in model and name == "load_in_8bit":
        what = "Axolotl leaves Jamba's Mamba layers in 16 bits, which is not modelled; load_in_4bit is"
        raise keys.not_modelled(name, what)


def remark_on_short_convolutions(keys: Keys, reading: Reading) -> None:
    """LFM2, which Axolotl does not load where causal-conv1d is installed (loaders/model.py:892-900)."""
    if "lfm2" in str(keys.get("base_model") or "").lower():
        text = "counted with causal-conv1d, which Axolotl refuses for LFM2: Transformers' own code is not"
        reading.remark(keys.where("base_model"), text)


def is_llama(keys: Keys) -> bool:
    """Whether Axolotl takes the model for a Llama: by its names, or by the ``model_type`` of its config.json.

    Source: axolotl 575a082aa (2023-11) utils/config.py, 0.19.0 utils/config/__init__.py
    ``is_llama_derived_model``.
    """
    names = [str(keys.get(name) or "") for name in ("base_model", "model_type")]
    if keys.flag("is_llama_derived_model") is True or any("llama" in name.lower() for name in names):
        return True
    entry = entry_named_in(names[0])
    return entry is not None and entry.config.get("model_type") == "llama"


def knows_ends(keys: Keys, *, age: Age) -> bool:
    """Whether Axolotl finds a token table or a head by name, to widen it.

    It passes BTLM over, and MPT's own code has neither name; nor had GPT-NeoX in 2023, whose norms alone it
    widened, which changes next to nothing under autocast.
    Source: axolotl 501b4d137 (2023-11) utils/models.py:417-425, 9f917245f (2024-08) utils/models.py:799-811,
    utils/lora_embeddings.py get_linear_embedding_layers.
    """
    model = str(keys.get("base_model") or "").lower()
    own_mpt = "mpt-" in model and keys.flag("trust_remote_code") is True
    return not (own_mpt or "btlm" in model or (age.of_2023 and EMBED_IN.search(model)))


def _prepared_again(keys: Keys, reading: Reading) -> bool:
    """Whether TRL prepares the quantised base itself, after Axolotl has returned its tensors to 16 bits.

    Its trainers of preferences get the base and the configuration of the adapters.  Over 4 bits under bf16
    norms alone stay in fp32 then.
    Source: axolotl 9f917245f (2024-08) and f8de8bb4f (2025-03) core/trainer_builder.py ``peft_config``,
    utils/models.py ``config_only``; trl 0.9.6, 0.15.2 and 0.16.0 trainer/{dpo,kto,orpo,cpo}_trainer.py
    __init__, trainer/utils.py peft_module_casting_to_bf16.
    """
    packed = reading.value("quantization") in ("nf4", "fp4", "int8")
    if reading.value("task") not in _PREFERENCES or not packed or reading.sharding.gathers_weights:
        return False
    norms = reading.value("quantization") != "int8" and reading.value("precision") in (None, "bf16-mixed")
    reading.switch("kbit_upcast", "norms" if norms else "all", keys.where("rl"))
    what = "norms" if norms else "token table, head and norms"
    text = f"TRL of that time prepares the quantised base once more: its {what} stay in fp32"
    reading.remark(keys.where("rl"), text)
    return True


def read_kbit_tables(keys: Keys, reading: Reading, *, age: Age) -> None:
    """Enter that token table and norms stay in fp32 over a quantised base, for models that name them
    otherwise than Llama does.

    PEFT's k-bit preparation makes them fp32.  Axolotl then returns modules to 16 bits by their names: norm,
    embed_tokens, lm_head and some of single families (axolotl 0.19.0 loaders/model.py:438-492 and 1116-1175,
    loaders/utils.py:306-316; 2023-11 utils/models.py:400-436).  Preparation is left out for Qwen with
    ``adapter: lora``, ZeRO-3 and FSDP that loads into host RAM.
    """
    if not age.today and _prepared_again(keys, reading):
        return
    model = str(keys.get("base_model") or "").lower()
    stays = _STAYS if age.of_2023 else _STAYS[:2]
    found = next((texts for pattern, *texts in stays if pattern.search(model)), None)
    if reading.sharding.gathers_weights or reading.value("quantization") not in ("nf4", "fp4", "int8"):
        return
    if QWEN_1.search(model) and keys.get("adapter") == "lora":
        reading.switch("kbit_upcast", "none", keys.where("base_model"))
        return
    if found is None:
        return
    reading.switch("kbit_upcast", "all", keys.where("base_model"))
    kept, beside = found
    text = f"{kept} of this model stay in fp32 over a quantised base; {beside} counted so too, which is more"
    reading.remark(keys.where("base_model"), text)


def _read_flash_parts(keys: Keys, reading: Reading) -> None:
    """Parts of flash-attn take the place of Llama's own;
    the example files of StableLM have the keys all the same.

    Source: axolotl fbe54be6b (2025-03) utils/models.py:515-545, 905-941, utils/config/__init__.py:178-185;
    so in 2024-08.
    """
    other = "stablelm" in str(keys.get("base_model") or "").lower() and not is_llama(keys)
    if not other:
        keys.refuse_switched_on(_FLASH_PARTS)
    for name, text in (_FLASH_PARTS | _PLAIN_PARTS).items():
        if keys.flag(name):
            reading.remark(
                keys.where(name), "has no effect: Axolotl does this to Llama alone" if other else text
            )


def read_loss(keys: Keys, reading: Reading, *, age: Age) -> None:
    """Enter the loss and Liger's kernels.

    Raises:
        UsageError: two losses in the place of the model's (axolotl 0.19.0 utils/schemas/validation.py
            check_cross_entropy_conflicts, since 2025).
        NotModelledError: a loss that no formula covers.
    """
    losses = [name for name in _LOSSES if keys.get(name)]
    if age.today and len(losses) > 1:
        raise keys.stops(losses[0], f"Axolotl refuses it beside {losses[1]}; leave one out")
    _read_flash_parts(keys, reading)
    liger = _liger_keys(keys, reading)
    if keys.flag("use_eaft"):
        # axolotl 0.19.0 core/builders/causal.py: compute_loss_func, which needs the logits.
        reading.switch("loss_weights", "entropy_of_rows", keys.where("use_eaft"))
        liger = [name for name in liger if name != "liger_fused_linear_cross_entropy"]
    if "liger_fused_linear_cross_entropy" in liger:
        reading.say("loss", "liger", keys.where("liger_fused_linear_cross_entropy"))
    elif keys.flag("chunked_cross_entropy"):
        # axolotl 0.19.0 monkeypatch/loss/chunked.py: the whole logits, whose copies in fp32 a compiled kernel
        # of each chunk never stores; as in 12c826816 (2025-06-23).
        reading.switch("loss_forward", "compute", keys.where("chunked_cross_entropy"))
        reading.switch("loss_backward", "compute+compute_grad", keys.where("chunked_cross_entropy"))
    elif "liger_cross_entropy" in liger:
        say_cross_entropy(reading, keys.where("liger_cross_entropy"))
    for switch, names in _KERNELS.items():
        on = [name for name in names if name in liger]
        if on:
            reading.switch(switch, True, keys.where(on[0]))
    keys.skip(
        ("chunked_cross_entropy_num_chunks", "liger_use_token_scaling", "liger_kernel_impl", "liger_rope")
    )


def _liger_keys(keys: Keys, reading: Reading) -> list[str]:
    """Keys of Liger's plugin that are on; without the plugin Axolotl never reads them
    (integrations/liger/args.py).
    """
    on = [name for name in _LIGER if keys.get(name)]
    if on and not any("liger" in plugin.lower() for plugin in keys.names("plugins")):
        reading.remark(
            keys.where(on[0]), "has no effect: plugins does not name axolotl.integrations.liger.LigerPlugin"
        )
        return []
    return on


def _read_ternary(keys: Keys, reading: Reading) -> None:
    """Weights of three values, by onebitllms (utils/schemas/validation.py check_onebitllms_lora)."""
    if keys.get("adapter"):
        raise keys.stops(TERNARY, "Axolotl refuses it beside adapters")
    reading.say("qat", "ternary", keys.where(TERNARY))


def read_qat(keys: Keys, reading: Reading) -> None:
    """Enter what inputs and weights are rounded to.

    Source: axolotl 0.19.0 utils/schemas/quantization.py QATConfig, utils/quantization.py
    get_quantization_config, _make_qat_config; torchao 0.17.0 quantization/qat/fake_quantize_config.py
    _infer_fake_quantize_configs.

    Raises:
        UsageError: what Axolotl stops at.
        NotModelledError: other numbers than int8 for inputs with int4 for weights, and mxfp4 for both.
    """
    if keys.flag(TERNARY):
        _read_ternary(keys, reading)
    part = keys.part("qat")
    if part is None:
        return
    weights, inputs = part.text("weight_dtype") or "int8", part.text("activation_dtype") or "none"
    if weights == "nvfp4":
        raise part.stops("weight_dtype", _NVFP4)
    if weights == "mxfp4" and part.count("group_size") not in (None, _GROUP):
        raise part.stops("group_size", f"Axolotl takes mxfp4 in groups of {_GROUP} alone")
    # For weights in mxfp4 inputs are, whatever the file says of them.
    kind = "mxfp4" if weights == "mxfp4" else "int8-int4"
    if kind != "mxfp4" and (inputs, weights) != ("int8", "int4"):
        raise part.not_modelled(
            "weight_dtype",
            f"inputs in {show(inputs)} with weights in {show(weights)} are not modelled; int8 with int4 is, "
            "and so is mxfp4",
        )
    part.refuse_switched_on({"quantize_embedding": "a rounded token table is not modelled"})
    reading.say("qat", kind, keys.where("qat"))
    reading.take(part, {"group_size": "qat_group"})
    if not part.has("group_size"):
        reading.say("qat_group", _GROUP, keys.where("qat"), "the default of group_size")
    # Steps before which nothing is rounded take less.
    part.skip(("fake_quant_after_n_steps",))
