"""What an Axolotl file trains: all weights, or adapters over a base that may be quantised, and their
kernels.

Keys: axolotl 0.19.0 utils/schemas/peft.py, loaders/model.py, loaders/adapter.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import names_in
from planner.configs.shared.keys import Keys
from planner.configs.tools.axolotl.axolotl_age import Age
from planner.configs.tools.axolotl.axolotl_attention import OLD_ATTENTION
from planner.configs.tools.axolotl.axolotl_numerics import refuse_packed_mixers, stores_in_fp32
from planner.domain.recipes.recipe import LINEAR_MODULES
from planner.errors import REFUSED_BY_TOOL, UsageError, show

_ADAPTER = {"lora_r": "lora_rank", "lora_dropout": "lora_dropout"}
_ADAPTER_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
_EMBEDDING_KERNEL = "lora_embedding_kernel"
_KIND = "bnb_4bit_quant_type"
# These say how 8-bit matrices multiply.
_OF_EIGHT_BITS = ("llm_int8_has_fp16_weight", "llm_int8_threshold")
_UNUSED_WITHOUT_ADAPTER = names_in("axolotl.toml", "unused_without_adapter")

_LANGUAGE_MODEL = re.compile(
    r"(?:model\.)?language_model\.(?:model\.)?layers\.\[\\d\]\+\.(?:\(_checkpoint_wrapped_module\.\)\?)?"
    r"\((?:mlp|cross_attn|self_attn|\|)+\)\.\((?P<names>(?:up|down|gate|q|k|v|o|\|)+)\)_proj"
)
"""The pattern of Axolotl's own examples: matrices of the layers of the language model."""


def read_method(keys: Keys, reading: Reading, *, age: Age) -> None:
    """Enter what is trained, over which base; ``old``: the file is of 0.8 or before.

    Raises:
        UsageError: settings that exclude each other.
        NotModelledError: another adapter, or a base that is packed in part.
    """
    adapter = keys.text("adapter")
    if adapter not in (None, "", "lora", "qlora"):
        raise keys.not_modelled("adapter", f"'{show(adapter)}' is not modelled; lora and qlora are")
    four, eight = keys.flag("load_in_4bit"), keys.flag("load_in_8bit")
    if not adapter:
        _read_full(keys, reading, four=four, eight=eight)
        return
    if adapter == "qlora" and not four:
        raise UsageError(
            f"{keys.where('adapter')} is qlora, and load_in_4bit is not true: Axolotl refuses that "
            f"[{REFUSED_BY_TOOL}]"
        )
    reading.say("method", "lora", keys.where("adapter"))
    keys.skip(("bnb_config_kwargs",))
    if adapter == "qlora":
        _read_four_bits(keys, reading, age=age)
        refuse_packed_mixers(keys, "load_in_4bit")
    elif eight:
        kernel = None if age.old else next(filter(keys.flag, _ADAPTER_KERNELS), None)
        if kernel:
            # axolotl 0.19.0 utils/schemas/validation.py check_lora_kernels_8bit.
            raise keys.stops(kernel, "Axolotl has no fused adapter kernels over 8 bits: leave it out")
        reading.say("quantization", "int8", keys.where("load_in_8bit"))
        refuse_packed_mixers(keys, "load_in_8bit")
    elif four:
        _read_four_bits_of_lora(keys, reading, age=age)
    _read_experts(keys, reading)
    reading.take(keys, _ADAPTER)
    if keys.flag("peft_use_dora"):
        reading.say("dora", True, keys.where("peft_use_dora"))
    _read_targets(keys, reading)
    if keys.flag("peft_autocast_adapter_dtype") is False:
        where = keys.where("peft_autocast_adapter_dtype")
        reading.remark(where, "adapters are counted in fp32: say --adapter-dtype for the dtype of the base")


def _read_four_bits(keys: Keys, reading: Reading, *, age: Age) -> None:
    """The base of ``adapter: qlora``: what Axolotl says to bitsandbytes, over which ``bnb_config_kwargs`` is
    written, for such a base alone.
    """
    place = "axolotl 0.19.0 loaders/model.py, _set_quantization_config"
    part = keys.section("bnb_config_kwargs")
    kind = part.text(_KIND)
    if kind not in (None, "nf4", "fp4"):
        raise part.wrong(_KIND, "nf4 or fp4", kind)
    reading.say("quantization", kind or "nf4", part.where(_KIND) if kind else keys.where("load_in_4bit"))
    reading.take(
        part, {"bnb_4bit_use_double_quant": "double_quant", "bnb_4bit_quant_storage": "quant_storage"}
    )
    reading.default("double_quant", True, place)
    if not age.of_2023:
        # Since 2024-03 (pull request 1378); before, bitsandbytes' own, which is bytes.
        divided = any(keys.get(name) for name in ("deepspeed", "fsdp", "fsdp_config"))
        storage = "fp32" if not divided and stores_in_fp32(keys) else "bf16"
        reading.default("quant_storage", storage, place)
    part.skip(_OF_EIGHT_BITS)
    if more := part.left_over_here():
        raise part.not_modelled(show(more[0]), "this setting of bitsandbytes is not modelled")


def _read_experts(keys: Keys, reading: Reading) -> None:
    """Experts that are packed as they are loaded, without a piece that is taken and let go before.

    Source: axolotl 0.19.0 monkeypatch/moe_quant.py patch_moe_quantization_on_load, utils/schemas/config.py
    check_quantize_moe_experts.
    """
    name = "quantize_moe_experts"
    if not keys.flag(name):
        return
    where = keys.where(name)
    if keys.flag("lora_target_linear"):
        raise keys.stops(name, "Axolotl refuses it beside lora_target_linear; say lora_target_modules")
    if reading.value("quantization") is None:
        raise keys.stops(name, "Axolotl needs load_in_4bit or load_in_8bit beside it")
    if reading.value("double_quant") is False:
        raise keys.not_modelled(
            name, "scales of experts are packed too, which is modelled for all matrices alone"
        )
    reading.switch("quantizes_experts", "held", where)
    reading.switch("loader_reserves", "nothing", where)


def _read_full(keys: Keys, reading: Reading, *, four: bool | None, eight: bool | None) -> None:
    if four or eight:
        where = keys.where("load_in_4bit" if four else "load_in_8bit")
        raise UsageError(
            f"{where}: a quantised base is trained through adapters only; say adapter: lora or qlora"
        )
    reading.default(
        "method", "full", "axolotl 0.19.0 utils/schemas/peft.py: adapter left blank trains all parameters"
    )
    keys.skip((*_ADAPTER, *_UNUSED_WITHOUT_ADAPTER))


def _read_four_bits_of_lora(keys: Keys, reading: Reading, *, age: Age) -> None:
    """``load_in_4bit`` beside ``adapter: lora``.

    Up to 0.12.2 Transformers gets the key and takes its own defaults: fp4 without double quantisation.
    Since 0.13 a base is quantised under ``adapter: qlora`` alone, and PEFT's preparation for it, which is
    called all the same, turns matrices to fp32.  The kernels of adapters, which are on unless said, then
    multiply fp32 with bf16.
    Source: axolotl 0.8.0 utils/models.py:801-875, 0.12.2 loaders/model.py:519-602, pull request 3205
    (2025-10), 0.19.0 loaders/model.py:801 and 1146, kernels/lora.py:646; transformers 4.51.3
    utils/quantization_config.py BitsAndBytesConfig; peft 0.21 utils/other.py prepare_model_for_kbit_training.
    Ignored: that the products of older versions are of fp32 copies, as nobody says their dtype.
    """
    if age.of_2023:
        what = "beside adapter: lora, as Axolotl of 2023 reads it, is not modelled; adapter: qlora is"
        raise keys.not_modelled("load_in_4bit", what)
    where = keys.where("load_in_4bit")
    if age.today:
        raise keys.stops(
            "load_in_4bit",
            "beside adapter: lora Axolotl since 0.13 quantises nothing, and stops with an error in its "
            "kernels; say adapter: qlora, or --stack axolotl@0.8 for 0.4 to 0.12",
        )
    reading.say("quantization", "fp4", where, "Axolotl leaves its kind to Transformers")


def _read_targets(keys: Keys, reading: Reading) -> None:
    said, extra = keys.get("lora_target_modules"), keys.names("lora_modules_to_save")
    parameters = keys.parameter_targets("lora_target_parameters")
    if isinstance(said, str) and (names := language_model_targets(said)):
        where = keys.where("lora_target_modules")
        reading.say("lora_targets", (*names, *parameters), where)
        reading.say(
            "freeze", ("vision_tower", "projector"), where, "the pattern reaches the language model alone"
        )
        return
    targets = keys.targets("lora_target_modules")
    if keys.flag("lora_target_linear"):
        reading.say("lora_targets", (LINEAR_MODULES, *parameters), keys.where("lora_target_linear"))
    elif targets or parameters:
        place = keys.where("lora_target_modules" if targets else "lora_target_parameters")
        reading.say("lora_targets", (*targets, *parameters), place)
    if extra:
        reading.say("modules_to_save", extra, keys.where("lora_modules_to_save"))


def read_adapter_kernels(keys: Keys, reading: Reading, *, age: Age, asked: bool) -> None:
    """Fused kernels of adapters: those that the file turns on,
    or all where it names none and Axolotl turns them on itself.

    Source: axolotl 0.19.0 utils/schemas/config.py:1976-2075 check_auto_enable_lora_kernels: nothing is turned
    on where one of the four keys is set, over 8 bits, with remote code or under FSDP1.  A version that stands
    in ``fsdp_config`` is moved out of it too late to count as FSDP2.  It came with 0.10, and up to 0.15 the
    kernels needed ``lora_dropout: 0`` (axolotl 0.15.0 monkeypatch/lora_kernels.py:349).  A file with a flag
    of attention may be of 0.14 to 0.16, unless --stack has ``asked`` for the version of today.

    Raises:
        UsageError: they are on, and stop with an error.
    """
    said = {name: keys.flag(name) for name in (*_ADAPTER_KERNELS, _EMBEDDING_KERNEL)}
    _refuse_separate_experts(keys, reading, said, age=age, asked=asked)
    if reading.value("method") == "full":
        _say_kernels(reading, {}, reading.said["method"].origin, age=age)
    elif any(flag is not None for flag in said.values()):
        on = {name: keys.where(name) for name, flag in said.items() if flag}
        origin = next(keys.where(name) for name, flag in said.items() if flag is not None)
        if not age.old and any(name in on for name in _ADAPTER_KERNELS):
            _refuse_other_heads(reading)
        _say_kernels(reading, on, origin, age=age)
    elif place := _why_not_fused(keys, reading, age=age, asked=asked):
        _say_kernels(reading, {}, place, age=age)
    elif not age.old:
        _refuse_other_heads(reading)


def _refuse_separate_experts(
    keys: Keys, reading: Reading, said: Mapping[str, bool | None], *, age: Age, asked: bool
) -> None:
    """Llama 4 whose experts are matrices of their own."""
    name, method = "llama4_linearized_experts", reading.value("method")
    if not keys.flag(name):
        return
    if keys.flag("lora_target_linear"):
        raise keys.not_modelled(
            "lora_target_linear", "adapters on experts with modules of their own are not modelled"
        )
    unsaid = all(flag is None for flag in said.values()) and not _why_not_fused(
        keys, reading, age=age, asked=asked
    )
    if not age.old and method != "full" and (unsaid or said["lora_qkv_kernel"] or said["lora_o_kernel"]):
        raise keys.stops(
            name,
            "Axolotl's fused adapter kernels, on unless said, stop at Llama 4's attention since 0.10; say "
            "lora_qkv_kernel: false and lora_o_kernel: false",
        )
    reading.switch("linearized_experts", True, keys.where(name))


def _refuse_other_heads(reading: Reading) -> None:
    """Fused kernels are put into models that PEFT wraps as causal ones, which a head of rewards is not.

    Source: axolotl 0.19.0 monkeypatch/lora_kernels.py apply_lora_kernel_patches, loaders/adapter.py
    _get_peft_task_type.
    """
    if reading.value("task") in ("reward", "prm"):
        raise UsageError(
            f"{reading.said['task'].origin}: Axolotl's fused kernels of adapters, which are on unless said, "
            f"stop at this head: say lora_mlp_kernel: false [{REFUSED_BY_TOOL}]"
        )


def _why_not_fused(keys: Keys, reading: Reading, *, age: Age, asked: bool) -> str:
    """Place of what keeps Axolotl from turning the kernels on; empty where it does.

    Of an ``old`` file it is what keeps a newer Axolotl from it, which runs the file where --stack says so.
    """
    for name in ("load_in_8bit", "trust_remote_code"):
        if keys.flag(name):
            return keys.where(name)
    if reading.sharding.engine == "fsdp" and str(keys.get("fsdp_version")) != "2":
        return reading.said["sharding"].origin
    if age.today:
        before = None if asked else next(filter(keys.holds, OLD_ATTENTION), None)
        return keys.where(before) if before and reading.value("lora_dropout") else ""
    # axolotl 0.12.2 utils/schemas/config.py: a dropout that is not said keeps them off as well.
    return "" if reading.value("lora_dropout") == 0 else keys.where("adapter")


def _say_kernels(reading: Reading, on: dict[str, str], origin: str, *, age: Age) -> None:
    """Enter which kernels run; those of attention and MLP together are one switch.

    Source: axolotl 0.8.0 kernels/lora.py matmul_lora, whose second product is a tensor of its own.
    """
    fused = all(name in on for name in _ADAPTER_KERNELS)
    kind = "fused_dropped" if age.today else "fused_apart"
    reading.switch("adapter_kernels", kind if fused else "eager", origin)
    if on and not fused:
        if "lora_mlp_kernel" in on:
            reading.switch("fused_mlp", True, on["lora_mlp_kernel"])
        reading.remark(
            origin, "adapters are counted as not fused, which is more: only some of their kernels are on"
        )


def language_model_targets(pattern: str) -> tuple[str, ...]:
    """Names that a pattern like that of the examples reaches, which are of the language model alone;
    none of another pattern.
    """
    match = _LANGUAGE_MODEL.fullmatch(pattern)
    return tuple(f"{name}_proj" for name in match["names"].split("|") if name) if match else ()
