"""Arguments of PEFT's own example of supervised fine-tuning: TRL's trainer, with names of its own.

Source: huggingface/peft 5d602fdbf (2026-08-21) examples/sft/train.py and utils.py
``create_and_prepare_model``, and their history since aa2ca83ca (2024-02-26).
"""

from __future__ import annotations

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading
from planner.configs.shared.kernels import DTYPES
from planner.configs.shared.keys import Keys
from planner.configs.tools import trl
from planner.configs.yaml_or_json import Document

TOOL = "PEFT's examples/sft"
STACK = trl.STACK
MARKS = frozenset({"use_peft_lora", "use_4bit_quantization", "use_8bit_quantization"})
_PLACE = "huggingface/peft 5d602fdbf examples/sft/train.py"
_UTILS = "huggingface/peft 5d602fdbf examples/sft/utils.py"
# As the script has it -> as TRL's command has it.  Its scripts of 2024 shorten an argument to max_seq_len.
_NAMES = {
    "use_peft_lora": "use_peft",
    "use_4bit_quantization": "load_in_4bit",
    "use_8bit_quantization": "load_in_8bit",
    "use_nested_quant": "use_bnb_nested_quant",
    "bnb_4bit_quant_storage_dtype": "bnb_4bit_quant_storage",
    "max_seq_len": "max_seq_length",
}
_DEFAULTS = {
    "lora_rank": 64,
    "lora_dropout": 0.1,
    "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "up_proj", "gate_proj"),
}
_OF_LORA = {"lora_rank": "lora_r", "lora_dropout": "lora_dropout", "lora_targets": "lora_target_modules"}
# Words of a dialogue are added to the vocabulary, filled up to a multiple of 8: a few rows.
_HARMLESS = ("chat_template_format", "append_concat_token", "add_special_tokens", "splits")


def is_peft_sft(document: Document) -> bool:
    """Whether arguments are the script's, which are TRL's, too, for the most part."""
    return bool(MARKS & document.table.keys())


def read_peft_sft(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a command line of the script says."""
    if keys.flag("use_unsloth"):
        raise keys.not_modelled("use_unsloth", "Unsloth in this script is not modelled; --stack unsloth is")
    keys.rename(_NAMES)
    _read_dtypes(keys, reading)
    if keys.flag("use_flash_attn"):
        reading.say("attention", "flash2", keys.where("use_flash_attn"))
    if keys.flag("gradient_checkpointing"):
        place = keys.where("use_reentrant") if keys.has("use_reentrant") else _PLACE
        reading.say("checkpoint_reentrant", bool(keys.flag("use_reentrant")), place)
    for name, value in _DEFAULTS.items() if keys.flag("use_peft") else ():
        if not keys.has(_OF_LORA[name]):
            reading.default(name, value, _PLACE)
    keys.skip((*_HARMLESS, "use_reentrant", "bnb_4bit_compute_dtype"))
    trl.read_trl(keys, reading, beside)


def _read_dtypes(keys: Keys, reading: Reading) -> None:
    """Weights are loaded in the dtype that holds packed ones, where that is a float, else in fp32; the script
    loads them itself, without a map of devices.
    """
    reading.switch("loader_places", "kbit", _UTILS)
    name = "bnb_4bit_quant_storage"
    storage = keys.text(name)
    if keys.flag("load_in_4bit") and storage in DTYPES:
        reading.say("load_dtype", storage, keys.where(name))
        return
    reading.default("load_dtype", "fp32", f"{_UTILS}; bf16 until 2024-04")
