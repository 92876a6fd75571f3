"""Dtypes, losses and generated samples of Axolotl's files."""

from __future__ import annotations

import re

from planner.catalog.models import entry_named_in
from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.liger import say_cross_entropy
from planner.configs.shared.rollouts import read_rollout, remark_divided
from planner.configs.tools.axolotl.axolotl_age import Age, is_fsdp2
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

_OWN_ROLLOUTS = texts_in("axolotl.toml", "rollouts_of_its_own")
_OWN_ROLLOUTS_HARMLESS = names_in("axolotl.toml", "harmless_of_its_rollouts")
_ENGINE_HARMLESS = names_in("axolotl.toml", "harmless_of_engine")


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
    keys.refuse_switched_on({"tiled_mlp": "a tiled feed-forward part is not modelled"})


def read_stored_weights(keys: Keys) -> None:
    """Packed weights of a checkpoint are turned to 16 bits where the file says so.

    Source: axolotl 0.19.0 loaders/model.py _set_quantization_config; transformers 5.16
    quantizers/quantizer_mxfp4.py is_trainable.

    Raises:
        NotModelledError: they stay packed.
    """
    name = "model_quantization_config"
    details = keys.part(f"{name}_kwargs")
    unpacks = details is not None and details.flag("dequantize")
    if keys.get(name) and not unpacks:
        raise keys.not_modelled(name, "packed weights do not train: say dequantize: true in its kwargs")


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


def refuse_preferences(keys: Keys, *, age: Age) -> None:
    """What Axolotl stops at in a file that trains from preferences.

    Source: axolotl 9f917245f (2024-08), 0.8.1 and 0.19.0 check_sample_packing_w_rl (2023-11 has none);
    0.8.1 and 0.19.0 check_kto_config (2024-08 has none); utils/schemas/validation.py in 0.19.0.
    All of them hand ``simpo_gamma`` on as it stands (0.19.0 core/builders/rl.py), and trl 0.9.6 and 1.9.0
    cpo_trainer.py divide it: a dry run of 0.19.0 ends with a TypeError.

    Raises:
        UsageError: a setting that Axolotl refuses, or one without which it stops.
    """
    kind = str(keys.get("rl") or "").lower()
    if not age.old:
        _refuse_packed_base(keys, kind)
    packs = "sample_packing" if keys.flag("sample_packing") else "eval_sample_packing"
    if kind and not age.of_2023 and keys.flag(packs) and (packs == "sample_packing" or kind == "kto"):
        raise keys.stops(packs, f"Axolotl packs no samples with rl: {kind}; leave it out")
    if kind == "kto" and not age.old and keys.flag("remove_unused_columns") is not False:
        raise keys.stops("rl", "Axolotl refuses kto without remove_unused_columns: false; say so")
    if kind == "simpo" and not keys.has("simpo_gamma"):
        raise keys.stops(
            "rl", "Axolotl has no default for simpo_gamma and stops at its first loss; say simpo_gamma"
        )


def _refuse_packed_base(keys: Keys, kind: str) -> None:
    """Source: axolotl 0.12.0 and 0.19.0 utils/schemas/validation.py check_fsdp2_base_model_quant_rl."""
    bits = next((name for name in ("load_in_8bit", "load_in_4bit") if keys.flag(name)), "")
    if bits and kind in ("dpo", "kto", "orpo", "ipo") and keys.get("fsdp_config") and is_fsdp2(keys):
        raise keys.stops(
            bits,
            f"Axolotl refuses it under FSDP2 with rl: {kind}; leave it out, take DeepSpeed, or say "
            "fsdp_version: 1",
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


def _read_beta(section: Keys, keys: Keys, reading: Reading, *, age: Age) -> None:
    """Whether GRPO compares with the model as it was: by ``beta`` of its section, else by ``rl_beta``.

    Where neither is handed on, TRL's own counts; in old versions a zero is not handed on.
    Source: axolotl 0.15.0 and 0.18.0 core/builders/rl.py, 0.8.0 core/trainer_builder.py:1037; trl 0.15.0 and
    0.16.0 trainer/grpo_config.py, which axolotl 0.7.0 to 0.8.0 pins: beta is 0.04.
    """
    for part, name in ((section, "beta"), (keys, "rl_beta")):
        value = part.number(name)
        if value is not None and (value or not age.old):
            reading.say("compare_reference", value != 0, part.where(name))
            return
    if age.old:
        reading.default("compare_reference", True, "trl 0.15.0 and 0.16.0 trainer/grpo_config.py: beta")


def read_generated(keys: Keys, reading: Reading, *, age: Age) -> None:
    """What GRPO generates, where it is the task: the section ``trl``, and of ``vllm`` the share of the card.

    ``old``: the file is of 0.8 or before, which leaves what is not said to TRL 0.16 (axolotl 0.8.0
    core/trainers/grpo/__init__.py set_training_args_kwargs).

    Raises:
        NotModelledError: what :func:`read_rollout` refuses.
    """
    if reading.value("task") != "grpo":
        return
    reading.said.pop("padding", None)
    section = keys.part("trl") or Keys(keys.path, {})
    section.refuse_switched_on(_OWN_ROLLOUTS)
    section.skip(_OWN_ROLLOUTS_HARMLESS)
    _read_beta(section, keys, reading, age=age)
    # axolotl 0.19.0 utils/schemas/validation.py check_vllm_mode_set, since 2025-08; TRL's own before.
    read_rollout(section, reading, old=age.old, mode="server")
    if reading.value("reward_model") is not None:
        reading.default("reward_dtype", "checkpoint", "transformers 5.23 from_pretrained, without a dtype")
    engine = keys.part("vllm")
    if engine is None:
        return
    engine.skip(_ENGINE_HARMLESS)
    most = engine.count("max_model_len")
    if most is not None and reading.value("generator") == "vllm-server":
        # axolotl 0.19.0 cli/vllm_serve.py, which starts that server from the same file.
        reading.longest = most, engine.where("max_model_len")
    if reading.value("generator") == "vllm":
        remark_divided(engine, reading, "tensor_parallel_size")
        reading.take(engine, {"gpu_memory_utilization": "vllm_memory"})
    else:
        # On other cards.
        engine.skip(("tensor_parallel_size", "gpu_memory_utilization"))
