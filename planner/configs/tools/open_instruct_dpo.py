"""What a file of open-instruct's ``dpo_tune_cache.py`` says beyond one of ``finetune.py``.

Keys and defaults: allenai/open-instruct at e6c3044aa (2026-08-20) open_instruct/dpo_utils.py
DPOExperimentConfig and olmo_core_utils.py; at 90e956120 (2026-01-31) dpo_utils.py ExperimentConfig.
The launch: scripts/dpo_train_with_accelerate_config.sh.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.configs.launchers.deepspeed_json import read_deepspeed
from planner.configs.said_by_file import Reading
from planner.configs.shared.age import first_held
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.preference_tasks import ASKED_BEFORE
from planner.errors import UsageError, show

STACK_OF_JANUARY = "open-instruct@2026-01"
STACK_OF_2024 = "open-instruct@2024"
OLD_TOOL = "open-instruct b089976 of 2024"
_TOOL_OF_JANUARY = "open-instruct 90e9561 of January 2026"
MARKS = names_in("open-instruct.toml", "marks_of_dpo")
_OLD_MARKS = texts_in("open-instruct.toml", "old_marks_of_dpo")
# The first was dropped in 5142c1968 (2026-01-31), the others in 9e8e2187c (2026-03-30) and 82b80530d.
_JANUARY = ("gradient_checkpointing", "use_flash_attn", "attn_backend")
_OLD = "a key of DPO before 2026-01-16"
_ASKS_BEFORE, _OLD_SCRIPT = "dpo_tune_cache", "dpo_tune"
_SECOND_MODEL = (
    "counted as dpo_tune.py, which its script runs with a second model; "
    "for dpo_tune_cache.py, which asks it before training, say --switches caches_reference=true"
)
_TASKS = {"dpo": "dpo", "dpo_norm": "dpo", "wpo": "dpo", "simpo": "simpo"}
_PLACE = "allenai/open-instruct e6c3044aa open_instruct/dpo_utils.py DPOExperimentConfig"
_OLD_PLACE = "allenai/open-instruct b08997673 open_instruct/dpo_tune.py FlatArguments"
_JANUARY_PLACE = "allenai/open-instruct 90e956120 open_instruct/dpo_utils.py ExperimentConfig"
_UNMODELLED = texts_in("open-instruct.toml", "unmodelled_of_dpo")
_DEGREES = texts_in("open-instruct.toml", "degrees_of_dpo")
_OF_STAGE = ("offload_optimizer", "offload_param", "zero_hpz_partition_size")
_HARMLESS = names_in("open-instruct.toml", "harmless_of_dpo")


def is_dpo(keys: Keys, script: str) -> bool:
    """Whether a file is for DPO, by keys that files for supervised fine-tuning do not have, or by the name of
    the script that a command runs.
    """
    return (
        Path(script).stem in (_ASKS_BEFORE, _OLD_SCRIPT)
        or first_held(keys, (*MARKS, *_OLD_MARKS)) is not None
    )


def is_dpo_table(table: Mapping[str, Any]) -> bool:
    """As :func:`is_dpo`, of the bare table."""
    return any(table.get(name) is not None for name in MARKS)


def read_dpo(keys: Keys, reading: Reading) -> None:
    """Enter the task, the age, the loss, the epochs and the checkpoints of such a file.

    Raises:
        UsageError: a loss that it does not know.
        NotModelledError: what no formula covers.
    """
    old = first_held(keys, _OLD_MARKS) or (_OLD_SCRIPT if Path(reading.script).stem == _OLD_SCRIPT else None)
    if old is not None:
        keys.rename(_OLD_MARKS)
    keys.refuse_switched_on(_UNMODELLED)
    keys.refuse_above_one(_DEGREES)
    if (kind := keys.text("optimizer_type")) not in (None, "adamw"):
        raise keys.not_modelled("optimizer_type", f"'{show(kind)}' of DPO is not modelled; adamw is")
    if keys.flag("concatenated_forward") is False:
        raise keys.not_modelled(
            "concatenated_forward", "a pass for the chosen and one for the rejected are not modelled"
        )
    january = None if old is not None else first_held(keys, _JANUARY)
    place = _OLD_PLACE if old is not None else _PLACE if january is None else _JANUARY_PLACE
    if old is not None:
        reading.take_stack(STACK_OF_2024, OLD_TOOL, f"{keys.path}:{old}", _OLD)
    elif january is not None:
        text = "a key that DPO of today no longer has"
        reading.take_stack(STACK_OF_JANUARY, _TOOL_OF_JANUARY, keys.where(january), text)
    _read_loss(keys, reading, "dpo_norm" if place == _PLACE else "dpo", place)
    asked_before = Path(reading.script).stem == _ASKS_BEFORE
    if reading.value("task") == "dpo" and old is not None:
        reading.switch("caches_reference", asked_before, f"{keys.path}:{old}")
        reading.remark(f"{keys.path}:{old}", ASKED_BEFORE if asked_before else _SECOND_MODEL)
    elif reading.value("task") == "dpo":
        reading.remark(str(keys.path), ASKED_BEFORE)
    reading.take(keys, {"num_epochs": "epochs"})
    if old is None and not keys.has("num_train_epochs"):
        reading.default("epochs", 1 if january is None else 2, place)
    _read_budget(keys, reading)
    keys.skip(_HARMLESS)


def _read_loss(keys: Keys, reading: Reading, default: str, place: str) -> None:
    kind = keys.text("loss_type")
    if kind is not None and kind not in _TASKS:
        raise UsageError(
            f"{keys.where('loss_type')}: must be one of {', '.join(_TASKS)}, but it is {show(kind)}"
        )
    if kind is None:
        reading.default("task", _TASKS[default], f"{place}: loss_type {default}")
    else:
        reading.say("task", _TASKS[kind], keys.where("loss_type"))


def _read_budget(keys: Keys, reading: Reading) -> None:
    """``activation_memory_budget`` below 1 turns the checkpoints of Transformers on (dpo_tune_cache.py)."""
    budget = keys.number("activation_memory_budget")
    if budget is None:
        return
    reading.say("gradient_checkpointing", budget < 1, keys.where("activation_memory_budget"))


def read_dpo_optimizer(keys: Keys, reading: Reading) -> bool:
    """The paged AdamW of bitsandbytes, where it is asked for over 16 bits; whether it is."""
    if not keys.flag("dpo_use_paged_optimizer"):
        return False
    eight = keys.flag("use_8bit_optimizer")
    reading.say(
        "optimizer",
        "paged_adamw_8bit" if eight else "paged_adamw_32bit",
        keys.where("dpo_use_paged_optimizer"),
    )
    return True


def read_own_zero(keys: Keys, reading: Reading) -> bool:
    """``zero_stage``: the DeepSpeed configuration that the script makes (``build_deepspeed_config``);
    whether it is said.
    """
    stage = keys.get("zero_stage")
    if stage is None:
        # dpo_tune_cache.py reads them with a stage only.
        keys.skip(_OF_STAGE)
        return False
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        raise keys.wrong("zero_stage", "0, 1, 2 or 3", stage)
    zero = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": "auto"}
    if stage == 3:
        partition = keys.count("zero_hpz_partition_size") or 8
        zero |= {"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
        zero |= {"zero_hpz_partition_size": partition}
    for name in _OF_STAGE[:2]:
        if keys.flag(name):
            zero[name] = {"device": "cpu", "pin_memory": True}
    part = Keys(keys.path, {"bf16": {"enabled": "auto"}, "zero_optimization": zero})
    read_deepspeed(part, reading)
    return True
