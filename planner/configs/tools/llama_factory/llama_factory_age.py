"""The age of a LLaMA-Factory file, as its keys tell it, and what older versions did otherwise.

Its parser stops at a key that it does not know (transformers HfArgumentParser parse_dict): a key tells the
oldest version that a file can be for, and one that was dropped the newest.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.age import first_held
from planner.configs.shared.keys import Keys

OLD_STACK = "llama-factory@0.8"
STACK_OF_0_9 = "llama-factory@0.9"
_OLD_TOOL = "LLaMA-Factory 0.7 to 0.9.2"
_TOOL_OF_0_9 = "LLaMA-Factory 0.9.2 and 0.9.3"
# Keys that 0.9.5 does not know (hparams of 0.7.1 to 0.9.3),
# with the name that Transformers has dropped by 4.55.
_OLD_KEYS = (
    "evaluation_strategy",
    "new_special_tokens",
    "split",
    "reserved_label_len",
    "visual_inputs",
    "image_resolution",
    "video_resolution",
    "image_dir",
    "train_mm_proj_only",
    "dpo_ftx",
    "kto_ftx",
    "dpo_beta",
    "dpo_loss",
    "orpo_beta",
)
# hparams/finetuning_args.py of 0.7.1, gone by 0.8.0, with a name of the Trainer's.
_KEYS_OF_0_7 = ("evaluation_strategy", "dpo_ftx", "kto_ftx", "dpo_beta", "dpo_loss", "orpo_beta")
# Keys that 0.9.1 does not know and 0.9.2 does, and with which 0.9.1 stops.
_KEYS_OF_0_9_2 = (
    "trust_remote_code",
    "freeze_multi_modal_projector",
    "freeze_language_model",
    "image_max_pixels",
    "image_min_pixels",
    "use_reentrant_gc",
    "use_apollo",
    "use_swanlab",
    "disable_shuffling",
    "ray_num_workers",
)
GONE = (
    "split",
    "reserved_label_len",
    "image_dir",
    "image_resolution",
    "video_resolution",
)


def old_place(keys: Keys) -> str:
    """Place of a key that tells a file of 0.9.2 or before; empty where none does."""
    if (name := first_held(keys, _OLD_KEYS)) is not None:
        return keys.where(name)
    # Since 0.9.3 the name is bnb (extras/constants.py QuantizationMethod).
    if keys.get("quantization_method") == "bitsandbytes":
        return keys.where("quantization_method")
    # All 28 example files of 0.9.2 have the first key and not the second,
    # none of 0.9.3 and later that trains.
    if keys.flag("overwrite_cache") and not keys.holds("report_to"):
        return keys.where("overwrite_cache")
    return ""


def is_of_0_7(keys: Keys) -> bool:
    """Whether a key tells a file of 0.7, before Transformers 4.43."""
    return first_held(keys, _KEYS_OF_0_7) is not None


def take_old_stack(keys: Keys, reading: Reading, old: str) -> None:
    """0.9.2 and 0.9.3 where a key tells it and none that they dropped, else the versions before."""
    newer = first_held(keys, _KEYS_OF_0_9_2)
    if newer is None or first_held(keys, (*GONE, *_KEYS_OF_0_7, "visual_inputs", "train_mm_proj_only")):
        reading.take_stack(OLD_STACK, _OLD_TOOL, old, f"a key of {_OLD_TOOL}")
    else:
        text = "a key since LLaMA-Factory 0.9.2, in a file that another key puts before 0.9.3"
        reading.take_stack(STACK_OF_0_9, _TOOL_OF_0_9, keys.where(newer), text)


def what_trusts(keys: Keys, reading: Reading) -> str:
    """Place of the model where the file is of a version that trusts the code of every checkpoint: up to 0.9.1
    (0.8.3 and 0.9.1 model/loader.py _get_init_kwargs).
    """
    return keys.where("model_name_or_path") if reading.value("stack") == OLD_STACK else ""


def read_old_load_dtype(keys: Keys, reading: Reading) -> None:
    """Up to 0.9.3 weights load in the compute dtype;
    from 0.8 on in fp32 under ZeRO-3 and FSDP where they are not quantised.

    Files of 0.7 said ``evaluation_strategy``, and weights of a likelihood had names of their own.
    """
    place = "llamafactory 0.8.3 model/patcher.py:98-102, the same in 0.9.2; 0.7.1 patcher.py:72"
    if not is_of_0_7(keys) and reading.sharding.gathers_weights and reading.value("quantization") is None:
        reading.default("load_dtype", "fp32", place)
    elif (precision := reading.value("precision")) is not None:
        reading.default("load_dtype", str(precision).removesuffix("-mixed"), place)
