"""Arguments with which a script of one's own trains something else than a language model on next tokens.

Only the script knows what it does with them, whichever tool's its other arguments look like.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys, is_off
from planner.domain.origin import ToolDefault

LENGTHS = ("block_size", "max_seq_length", "model_max_length", "max_seq_len", "max_length", "cutoff_len")
"""Names that scripts commonly have for the length of samples: those of Transformers' examples, and of
FastChat and its relatives.
"""
# Words by themselves where longer ones have the same letters: ``support``, ``endpoint``, ``teacher_forcing``.
_OTHER_TASK = re.compile(
    r"^beta$|teacher(?!_forc)|student|distil|(?:^|_)ref_|reference_model|reward|critic"
    r"|(?:^|_)policy(?:_|$)|(?:^|_)(?:dpo|kto|ppo|orpo|simpo|cpo|rloo)(?:_|$)|grpo"
    r"|prompt_length|num_generations|(?:^|_)kl(?:_|$)|(?:assistant|draft|second|aux)\w*_model"
    r"|model_name_or_path_|negative|contrastive"
)
# Names that a tool may have for something harmless: data, engines, and how the script trains.
_UNREAD = re.compile(
    r"(?:^|_)mm_|vision|image|pixel|video|audio|speech|deepspeed|fsdp|^ds_|algorithm|objective|num_blocks"
    r"|(?:^|_)loss(?:_|$)|(?:^|_)(?:mode|method|layers)$|(?:^|_)tune_"
    r"|fix_(?:llm|lm|model|backbone|vit|encoder)"
)
# What stands before some words tells that they say nothing of a training step: ``auto_wrap_policy`` divides
# layers, ``log_loss`` prints a number, ``wandb_mode`` goes into a report.
_BESIDE_THE_STEP = re.compile(
    r"(?:^|_)(?:wrap|wandb|swanlab|log|logging|report|plot|print|save|saving|eval"
    r"|evaluation|test|early_stop(?:ping)?|best|monitor|resume|retry|download|overwrite|debug|verbose"
    r"|truncation|lr|learning_rate|schedul(?:e|er))_(?:policy|mode|method|layers|loss)$"
)
# A mode in which a script does what it is read for.
_PLAIN_MODES = frozenset({"train", "training", "sft", "finetune", "fine-tune", "finetuning", "fine-tuning"})


def other_task(table: Mapping[str, Any], unread: Collection[str]) -> str:
    """The first key that says another task, whether the tool has it or not, or, ``unread`` by the tool, other
    data, an engine or another way of training; empty where there is none.
    """
    found = (name for name, value in table.items() if _says_another(name.lower(), value, name in unread))
    return next(found, "")


def _says_another(name: str, value: Any, unread: bool) -> bool:
    if is_off(value):
        return False
    name = _BESIDE_THE_STEP.sub("", name)
    if str(value).lower() in _PLAIN_MODES:
        name = name.removesuffix("mode")
    return bool(_OTHER_TASK.search(name) or (unread and _UNREAD.search(name)))


def leave_dtype(keys: Keys, reading: Reading) -> None:
    """Enter that the script may load fp32 weights or those of the checkpoint, where nothing says which."""
    if reading.value("load_dtype") is None:
        sentence = f"{keys.path}: in which dtype the weights are loaded is the script's: say --load-dtype"
        reading.either["load_dtype"] = (sentence, ("fp32", "checkpoint"))


def leave_loss(keys: Keys, reading: Reading) -> None:
    """Enter that the script may take its loss without whole logits, which needs less."""
    if reading.value("loss") is None and reading.value("task") in (None, "sft", "pretrain"):
        sentence = f"{keys.path}: which loss is taken is the script's: say --loss hf or liger"
        reading.less["loss"] = (sentence, "liger")


def leave_method(keys: Keys, reading: Reading) -> None:
    """Enter that the script may put adapters on, and quantise their base, where nothing says so."""
    said = reading.said.get("method")
    if said and isinstance(said.origin, ToolDefault) and reading.value("task") in (None, "sft"):
        sentence = f"{keys.path}: what is trained is the script's: say --method full, lora, qlora or int8"
        methods = ("lora", "qlora") if said.value == "lora" else ("full", "lora", "qlora")
        reading.either["method"] = (sentence, methods)
        del reading.said["method"]
