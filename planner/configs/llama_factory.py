"""A training file of LLaMA-Factory (YAML or JSON).

Keys and defaults: llamafactory 0.9.5 hparams/model_args.py, finetuning_args.py, data_args.py and parser.py.
"""

from __future__ import annotations

from planner.configs.harmless import LLAMA_FACTORY_HARMLESS
from planner.configs.keys import Keys
from planner.configs.reading import Reading
from planner.configs.sharding import Beside
from planner.configs.trainer import need_precision, read_distribution, read_precision, read_trainer, say_liger
from planner.errors import show

TOOL = "LLaMA-Factory 0.9.5"
STACK = "llama-factory"
# Keys that no other tool has.
MARKS = frozenset({"finetuning_type", "stage", "cutoff_len", "quantization_bit", "template", "lora_target", "flash_attn"})

_TABLE = {
    "cutoff_len": "seq",
    "lora_rank": "lora_rank",
    "lora_dropout": "lora_dropout",
    "use_reentrant_gc": "checkpoint_reentrant",
}
_ATTENTIONS = {"disabled": "eager", "sdpa": "sdpa", "fa2": "flash2", "fa3": "flash2"}
_UNMODELLED = {
    "use_dora": "DoRA is not modelled",
    "use_galore": "GaLore is not modelled",
    "use_apollo": "APOLLO is not modelled",
    "use_badam": "BAdam is not modelled",
    "use_adam_mini": "Adam-mini is not modelled",
    "use_muon": "Muon is not modelled",
    "use_llama_pro": "LLaMA Pro (added blocks) is not modelled",
    "use_mca": "training by Megatron is not modelled",
    "use_hyper_parallel": "HyperParallel is not modelled",
    "use_kt": "KTransformers is not modelled",
    "use_unsloth": "Unsloth inside LLaMA-Factory is not modelled; --stack unsloth describes Unsloth by itself",
    "use_unsloth_gc": "Unsloth's checkpointing, which keeps checkpoints in host RAM, is not modelled",
    "shift_attn": "shifted sparse attention is not modelled",
    "mixture_of_depths": "mixture of depths is not modelled",
    "upcast_lmhead_output": "a head whose output is fp32 is not modelled",
    "use_v1_kernels": "kernels of LLaMA-Factory's own are not modelled",
    "freeze_language_model": "a frozen language model is not modelled",
    "fp8": "training in fp8 is not modelled",
    "use_dft_loss": "this loss is not modelled",
    "use_asft_loss": "this loss is not modelled",
    "use_eaft_loss": "this loss is not modelled",
}
_STAGES = ("pt", "sft")


def read_llama_factory(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a file of LLaMA-Factory says.

    Raises:
        UsageError: a value that cannot be used.
        NotModelledError: something that no formula covers.
    """
    keys.refuse_switched_on(_UNMODELLED)
    stage = keys.text("stage") or "sft"
    if stage not in _STAGES:
        raise keys.not_modelled("stage", f"stage '{show(stage)}' is not modelled; {' and '.join(_STAGES)} are")
    model = keys.text("model_name_or_path")
    if model is not None:
        reading.say("model", model, keys.where("model_name_or_path"))
    reading.take(keys, _TABLE)
    reading.default("seq", 2048, "llamafactory 0.9.5 hparams/data_args.py: cutoff_len")
    _read_method(keys, reading)
    _read_packing(keys, reading, stage)
    if keys.flag("disable_gradient_checkpointing") is not None:
        where = keys.where("disable_gradient_checkpointing")
        reading.say("gradient_checkpointing", not keys.flag("disable_gradient_checkpointing"), where)
        keys.skip(("gradient_checkpointing",))
    attention = keys.text("flash_attn")
    if attention not in (None, "auto"):
        if attention not in _ATTENTIONS:
            raise keys.wrong("flash_attn", f"auto, {', '.join(_ATTENTIONS)}", attention)
        reading.say("attention", _ATTENTIONS[attention], keys.where("flash_attn"))
        if attention == "fa3":
            reading.remark(keys.where("flash_attn"), "fa3 is counted as FlashAttention 2: memory is the same, time is not")
    if keys.flag("enable_liger_kernel"):
        say_liger(reading, keys.where("enable_liger_kernel"))
    _remark(keys, reading)
    read_trainer(keys, reading)
    _drop_checkpointing_off(keys, reading)
    read_distribution(keys, reading, beside)
    keys.skip(LLAMA_FACTORY_HARMLESS)


def _drop_checkpointing_off(keys: Keys, reading: Reading) -> None:
    """``gradient_checkpointing: false`` of the Trainer does not turn it off here (model/model_utils/checkpointing.py)."""
    said = reading.said.get("gradient_checkpointing")
    if said is not None and said.value is False and said.origin == keys.where("gradient_checkpointing"):
        del reading.said["gradient_checkpointing"]
        reading.remark(said.origin, "has no effect: only disable_gradient_checkpointing turns it off")


def _remark(keys: Keys, reading: Reading) -> None:
    for name, text in (
        ("resize_vocab", "the vocabulary is counted as published"),
        ("add_tokens", "the vocabulary is counted as published"),
        ("add_special_tokens", "the vocabulary is counted as published"),
        ("new_special_tokens_config", "the vocabulary is counted as published"),
        ("adapter_name_or_path", "an adapter is trained as lora_rank and lora_target say, whatever it was made with"),
        ("enable_torch_profiler", "what the profiler holds is not counted"),
        ("moe_aux_loss_coef", "the routers' loss is not counted"),
    ):
        if keys.get(name) not in (None, False):
            reading.remark(keys.where(name), text)


def _read_method(keys: Keys, reading: Reading) -> None:
    kind = keys.text("finetuning_type")
    if kind not in (None, "lora", "full"):
        raise keys.not_modelled("finetuning_type", f"'{show(kind)}' is not modelled; lora and full are")
    if kind is not None:
        reading.say("method", kind, keys.where("finetuning_type"))
    reading.default("method", "lora", "llamafactory 0.9.5 hparams/finetuning_args.py: finetuning_type")
    _read_numerics(keys, reading)
    if reading.value("method") == "full":
        # What a file says of adapters has no effect then.
        keys.skip(("lora_target", "additional_target", "lora_rank", "lora_dropout"))
        for name in ("lora_rank", "lora_dropout"):
            reading.said.pop(name, None)
        return
    targets = keys.names("lora_target")
    if targets:
        reading.say("lora_targets", ("all-linear",) if targets == ("all",) else targets, keys.where("lora_target"))
    extra = keys.names("additional_target")
    if extra:
        reading.say("modules_to_save", extra, keys.where("additional_target"))


def _read_numerics(keys: Keys, reading: Reading) -> None:
    """Precision, and the base's quantisation."""
    read_precision(keys, reading)
    if keys.flag("pure_bf16"):
        reading.switch("trainable_fp32", False, keys.where("pure_bf16"))
        reading.said.pop("precision", None)
        reading.say("precision", "bf16", keys.where("pure_bf16"))
    if reading.value("precision") is None:
        need_precision(reading)
    bits = keys.count("quantization_bit")
    if keys.flag("upcast_layernorm"):
        if bits is None:
            raise keys.not_modelled("upcast_layernorm", "norms in fp32 over a base in 16 bits are not modelled")
        reading.switch("kbit_upcast", "norms", keys.where("upcast_layernorm"))
    maker = keys.text("quantization_method") or "bnb"
    if bits is not None and maker not in ("bnb", "bitsandbytes"):
        raise keys.not_modelled("quantization_method", f"quantisation by {show(maker)} is not modelled; bnb is")
    _read_bits(keys, reading, bits)


def _read_bits(keys: Keys, reading: Reading, bits: int | None) -> None:
    """Quantisation, whose bytes are stored in the compute dtype (model/model_utils/quantization.py)."""
    kind, double = keys.text("quantization_type") or "nf4", keys.flag("double_quantization")
    if bits is None:
        return
    if bits not in (4, 8):
        raise keys.wrong("quantization_bit", "4 or 8", bits)
    reading.say("quantization", kind if bits == 4 else "int8", keys.where("quantization_bit"))
    if bits == 8:
        return
    if double is not None:
        reading.say("double_quant", double, keys.where("double_quantization"))
    reading.default("double_quant", True, "llamafactory 0.9.5 hparams/model_args.py: double_quantization")
    precision = reading.value("precision")
    if precision is not None:
        note = "llamafactory 0.9.5 model/model_utils/quantization.py: bnb_4bit_quant_storage is the compute dtype"
        reading.default("quant_storage", str(precision).removesuffix("-mixed"), note)


def _read_packing(keys: Keys, reading: Reading, stage: str) -> None:
    packing, neat = keys.flag("packing"), keys.flag("neat_packing")
    if neat:
        reading.say("padding", "packed", keys.where("neat_packing"))
    elif packing:
        reading.say("padding", "packed", keys.where("packing"))
    elif packing is None and stage == "pt":
        reading.default("padding", "packed", "llamafactory 0.9.5 hparams/parser.py: pre-training packs")
