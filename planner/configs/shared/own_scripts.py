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

_OTHER_TASK = re.compile(
    r"^beta$|teacher|student|distil|(?:^|_)ref_|reference_model|reward|critic|(?<!wrap_)policy|dpo|kto|ppo"
    r"|grpo|prompt_length|num_generations|(?:^|_)kl(?:_|$)|(?:assistant|draft|second|aux)\w*_model"
    r"|model_name_or_path_|negative|contrastive"
)
# Names that a tool may have for something harmless: data, engines, and how the script trains.
_UNREAD = re.compile(
    r"(?:^|_)mm_|vision|image|pixel|video|audio|speech|deepspeed|fsdp|^ds_|algorithm|objective|num_blocks"
    r"|(?:^|_)loss(?:_|$)|(?<!wandb)(?:^|_)mode$|(?:^|_)(?:method|layers)$|(?:^|_)tune_"
    r"|fix_(?:llm|lm|model|backbone|vit|encoder)"
)


def other_task(table: Mapping[str, Any], unread: Collection[str]) -> str:
    """The first key that says another task, whether the tool has it or not, or, ``unread`` by the tool, other
    data, an engine or another way of training; empty where there is none.
    """
    found = (
        name
        for name, value in table.items()
        if (_OTHER_TASK.search(name.lower()) or (name in unread and _UNREAD.search(name.lower())))
        and not is_off(value)
    )
    return next(found, "")


def leave_dtype(keys: Keys, reading: Reading) -> None:
    """Enter that the script may load fp32 weights or those of the checkpoint, where nothing says which."""
    if reading.value("load_dtype") is None:
        sentence = f"{keys.path}: in which dtype the weights are loaded is the script's: say --load-dtype"
        reading.either["load_dtype"] = (sentence, ("fp32", "checkpoint"))


def leave_method(keys: Keys, reading: Reading) -> None:
    """Enter that the script may put adapters on, and quantise their base, where nothing says so."""
    said = reading.said.get("method")
    if said and isinstance(said.origin, ToolDefault) and reading.value("task") in (None, "sft"):
        sentence = f"{keys.path}: what is trained is the script's: say --method full, lora, qlora or int8"
        methods = ("lora", "qlora") if said.value == "lora" else ("full", "lora", "qlora")
        reading.either["method"] = (sentence, methods)
        del reading.said["method"]
