"""Classes of TRL and Transformers that programs ask about by their fields, and what is made of them."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from planner.configs.programs.values import Made
from planner.configs.shared.key_tables import names_in

_MODEL: dict[str, Any] = {
    "model_name_or_path": None,
    "model_revision": "main",
    "dtype": "float32",
    "attn_implementation": None,
    "use_peft": False,
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "lora_target_modules": None,
    "lora_target_parameters": None,
    "lora_modules_to_save": None,
    "lora_task_type": "CAUSAL_LM",
    "use_rslora": False,
    "use_dora": False,
    "load_in_8bit": False,
    "load_in_4bit": False,
    "bnb_4bit_quant_type": "nf4",
    "use_bnb_nested_quant": False,
    "bnb_4bit_quant_storage": None,
    # Up to 0.26 (trl 0.26.2 trainer/model_config.py).
    "torch_dtype": None,
    "trust_remote_code": False,
}
# TRL's names of what PEFT's LoraConfig and Transformers' BitsAndBytesConfig have.
LORA = {
    "r": "lora_r",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "modules_to_save": "lora_modules_to_save",
    "use_dora": "use_dora",
}
PACKING = {
    "load_in_4bit": "load_in_4bit",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
    "bnb_4bit_quant_storage": "bnb_4bit_quant_storage",
}
FIELDS: dict[str, dict[str, Any]] = {
    # trl 1.16.0 trainer/model_config.py.
    "ModelConfig": _MODEL,
    # trl 1.16.0 scripts/utils.py; the last one of the first class up to 0.26.
    "ScriptArguments": {
        "dataset_name": None,
        "dataset_config": None,
        "dataset_train_split": "train",
        "dataset_test_split": "test",
        "dataset_streaming": False,
        "ignore_bias_buffers": False,
        "gradient_checkpointing_use_reentrant": False,
    },
    "DatasetMixtureConfig": {"datasets": [], "streaming": False, "test_split_size": None},
}
"""Fields of classes that say nothing of the trainer, with their defaults."""
_OF_TRAINER = frozenset(
    (*names_in("transformers.toml", "harmless"), *names_in("transformers.toml", "counted"))
)
OF_TRAINER: dict[str, AbstractSet[str]] = {
    "TrainingArguments": _OF_TRAINER,
    "Seq2SeqTrainingArguments": _OF_TRAINER,
}
"""Fields of these classes: others that a program adds to them are its own."""
# transformers 4.45 to 5.23 training_args.py: the same in all of them, and for what TRL derives from it.
_STARTS: dict[str, Any] = {
    "seed": 42,
    "do_train": False,
    "do_predict": False,
    "resume_from_checkpoint": None,
    "push_to_hub": False,
    "deepspeed": None,
    "use_liger": False,
    "use_liger_kernel": False,
    "max_steps": -1,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "trust_remote_code": False,
}
_STARTS_OF_TRANSFORMERS = {"gradient_checkpointing": False, "bf16": False, "fp16": False}


ARGUMENTS = {
    "from_pretrained": ("model_name",),
    "get_peft_model": ("model", "peft_config"),
    "Trainer": ("model", "args", "data_collator", "train_dataset", "eval_dataset"),
    "SFTTrainer": ("model", "args"),
    "DPOTrainer": ("model", "ref_model", "args"),
    "KTOTrainer": ("model", "ref_model", "args"),
    "GRPOTrainer": ("model", "reward_funcs", "args"),
    "Config": ("output_dir",),
    "Arguments": ("output_dir",),
    "prepares": ("model", "use_gradient_checkpointing", "gradient_checkpointing_kwargs"),
    "adapted": ("model", "r", "target_modules", "lora_alpha", "lora_dropout", "bias"),
}
"""Names of arguments that are given by their place."""


def start_of(made: Made, name: str) -> tuple[Any] | None:
    """What a setting of a trainer is that nobody gives; in a tuple, for it may be nothing."""
    if made.kind in FIELDS:
        return None
    if made.kind.endswith("TrainingArguments") and name in _STARTS_OF_TRANSFORMERS:
        return (_STARTS_OF_TRANSFORMERS[name],)
    return (_STARTS[name],) if name in _STARTS else None


def adapters_of(config: Made) -> Made | None:
    """What ``get_peft_config`` makes of a ModelConfig (trl 1.16.0 trainer/utils.py)."""
    given = config.given
    if given.get("use_peft") is False:
        return None
    found = {name: given.get(field) for name, field in LORA.items()}
    targets = found["target_modules"]
    if isinstance(targets, list) and len(targets) == 1:
        found["target_modules"] = targets[0]
    return Made("LoraConfig", found, config.line)


def quantisation_of(config: Made) -> Made | None:
    """What ``get_quantization_config`` makes of a ModelConfig (trl 1.16.0 trainer/utils.py)."""
    given = config.given
    if given.get("load_in_4bit"):
        found = {name: given.get(field) for name, field in PACKING.items()}
        return Made("BitsAndBytesConfig", {**found, "of_trl": True}, config.line)
    if given.get("load_in_8bit"):
        return Made("BitsAndBytesConfig", {"load_in_8bit": given["load_in_8bit"]}, config.line)
    return None
