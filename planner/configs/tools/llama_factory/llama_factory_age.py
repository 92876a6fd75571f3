"""The age of a LLaMA-Factory file, as its keys tell it, and what older versions did otherwise.

Its parser stops at a key that it does not know (transformers HfArgumentParser parse_dict): a key tells the
oldest version that a file can be for, and one that was dropped the newest.
"""

from __future__ import annotations

from pathlib import Path

from planner.configs.said_by_file import Reading
from planner.configs.shared.age import enter_age, first_held
from planner.configs.shared.checkpoints import came_after
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.errors import show

STACK = "llama-factory"
OLD_STACK = "llama-factory@0.8"
STACK_OF_0_9 = "llama-factory@0.9"
_RELEASES = {
    STACK: (STACK, "LLaMA-Factory 0.9.5"),
    STACK_OF_0_9: (STACK_OF_0_9, "LLaMA-Factory 0.9.2 and 0.9.3"),
    OLD_STACK: (OLD_STACK, "LLaMA-Factory 0.7 to 0.9.2"),
}
_OLD_KEYS = names_in("llama-factory.toml", "keys_to_0_8")
# hparams/finetuning_args.py of 0.7.1, gone by 0.8.0; the last two are of 0.7.0.
_OWN_KEYS_OF_0_7 = (
    *("dpo_ftx", "kto_ftx", "dpo_beta", "dpo_loss", "orpo_beta"),
    *("num_layer_trainable", "name_module_trainable"),
)
# A name of the Trainer's, which its later versions take as well, but their files do not say.
_KEYS_OF_0_7 = ("evaluation_strategy", *_OWN_KEYS_OF_0_7)
_KEYS_OF_0_9_2 = names_in("llama-factory.toml", "keys_of_0_9_2")
# src/train_bash.py of its repository: up to 0.7, whose successor is src/train.py.
_SCRIPT_OF_0_7 = "train_bash.py"
_NEW_TEMPLATES = names_in("llama-factory.toml", "templates_since_0_9")
# The last that requirements.txt of 0.9.2 takes.
_TRANSFORMERS_OF_0_9_2 = "4.49.0"
BEFORE_0_7 = texts_in("llama-factory.toml", "unmodelled_before_0_7")

GONE = names_in("llama-factory.toml", "gone")


def read_age(keys: Keys, reading: Reading, asked: str) -> bool:
    """Whether a file is of 0.9.3 or before, as a key tells or it is ``asked`` for; its stack is entered."""
    stack, place, text = _told(keys, reading)
    return enter_age(reading, (stack,), _RELEASES, asked, (place, text)) != STACK


def _old_place(keys: Keys, reading: Reading) -> str:
    """Place of what tells a file of 0.9.2 or before; empty where nothing does.

    A template or a model that 0.9.2 does not have outweighs what only those files usually say.
    """
    if is_run_by_0_7(reading):
        return f"{keys.path}: {show(reading.script)}"
    if (name := first_held(keys, _OLD_KEYS)) is not None:
        return keys.where(name)
    newer = came_after(keys, "model_name_or_path", _TRANSFORMERS_OF_0_9_2)
    if newer or (keys.text("template") or "") in _NEW_TEMPLATES:
        return ""
    # Since 0.9.3 the name is bnb (extras/constants.py QuantizationMethod).
    if keys.get("quantization_method") == "bitsandbytes":
        return keys.where("quantization_method")
    # All 28 example files of 0.9.2 have the first key and not the second,
    # none of 0.9.3 and later that trains.
    if keys.flag("overwrite_cache") and not keys.holds("report_to"):
        return keys.where("overwrite_cache")
    return ""


def is_of_0_7(keys: Keys, reading: Reading) -> bool:
    """Whether a key or the script tells a file of 0.7, before Transformers 4.43."""
    return is_run_by_0_7(reading) or first_held(keys, _KEYS_OF_0_7) is not None


def is_run_by_0_7(reading: Reading) -> bool:
    """Whether the script is one that 0.7 had last."""
    return Path(reading.script).name == _SCRIPT_OF_0_7


def old_length(keys: Keys, reading: Reading) -> int | None:
    """``cutoff_len`` of an old file that does not say it: 1,024 in 0.7.1 and 0.8.3, 2,048 in 0.9.1 and later
    (hparams/data_args.py); ``None`` where nothing tells which.
    """
    if is_run_by_0_7(reading) or first_held(keys, _OWN_KEYS_OF_0_7):
        return 1024
    return None if first_held(keys, _KEYS_OF_0_9_2) is None else 2048


def _told(keys: Keys, reading: Reading) -> tuple[str, str, str]:
    """The stack of a file, with the place and the sentence of what tells it: 0.9.2 and 0.9.3 where a key does
    and none that they dropped, else the versions before.
    """
    if not (old := _old_place(keys, reading)):
        return STACK, "", ""
    newer = first_held(keys, _KEYS_OF_0_9_2)
    gone = (*GONE, "visual_inputs", "train_mm_proj_only")
    if newer is None or is_of_0_7(keys, reading) or first_held(keys, gone):
        sign = "the script" if is_run_by_0_7(reading) else "a key"
        return OLD_STACK, old, f"{sign} of {_RELEASES[OLD_STACK][1]}"
    text = "a key since LLaMA-Factory 0.9.2, in a file that another key puts before 0.9.3"
    return STACK_OF_0_9, keys.where(newer), text


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
    if (
        not is_of_0_7(keys, reading)
        and reading.sharding.gathers_weights
        and reading.value("quantization") is None
    ):
        reading.default("load_dtype", "fp32", place)
    elif (precision := reading.value("precision")) is not None:
        reading.default("load_dtype", str(precision).removesuffix("-mixed"), place)
