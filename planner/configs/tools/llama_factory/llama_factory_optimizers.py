"""Optimizers that LLaMA-Factory makes in the place of the Trainer's.

Source: llamafactory 0.9.5 train/trainer_utils.py create_custom_optimizer, hparams/finetuning_args.py and, for
what it refuses, hparams/parser.py:388-398 (the same in 0.7.1 for GaLore and BAdam).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from planner.configs.said_by_file import Alone, Reading
from planner.configs.shared.keys import Keys
from planner.configs.shared.projecting import contains_one_of, need_all_matrices, say_in_backward
from planner.domain.recipes.optimizers import Optimizer
from planner.errors import REFUSED_BY_TOOL, UsageError, show

_PLACE = "llamafactory 0.9.5 hparams/finetuning_args.py"
# What each is made of -> the optimizer; GaLore's in 8 bits hands ``is_paged`` on.
_PROJECTING: Mapping[str, Mapping[str, Optimizer | None]] = {
    "apollo": {"adamw_torch": "apollo_adamw"},
    "galore": {
        "adamw_torch": "galore_adamw",
        "adamw_bnb_8bit": "galore_adamw_8bit",
        "adamw_8bit": "galore_adamw_8bit",
        "paged_adamw_8bit": None,
        "adafactor": "galore_adafactor",
    },
}
_BADAM_OTHERS = {
    "badam_mode": ("layer", "some elements of every matrix are trained"),
    "optim": ("adamw_torch", "BAdam over another optimizer than AdamW is not modelled"),
}


def read_own_optimizer(keys: Keys, reading: Reading) -> None:
    """Enter the optimizer that the file switches on.

    Raises:
        UsageError: a base that it is not made of.
        NotModelledError: one that no formula covers.
    """
    for name, optimizer in (("use_adam_mini", "adam_mini"), ("use_muon", "muon")):
        if keys.flag(name):
            reading.say("optimizer", optimizer, keys.where(name))
    if keys.flag("use_apollo"):
        _read_projecting(keys, reading, "apollo")
    if keys.flag("use_badam"):
        _read_badam(keys, reading)
    if keys.flag("use_galore"):
        _read_projecting(keys, reading, "galore")


def _read_projecting(keys: Keys, reading: Reading, kind: Literal["apollo", "galore"]) -> None:
    """APOLLO by random matrices, or GaLore, over all linear layers but the head (_create_apollo_optimizer,
    _create_galore_optimizer).
    """
    switch, target = f"use_{kind}", f"{kind}_target"
    names = keys.names(target)
    if names not in ((), ("all",)) and need_all_matrices(keys, target, contains_one_of(names)):
        reading.switch("projects_head", True, keys.where(target))
    for name, modelled in ((f"{kind}_proj_type", "std"), ("apollo_proj", "random")):
        if name.startswith(kind) and keys.get(name) not in (None, modelled):
            raise keys.not_modelled(name, f"'{show(keys.get(name))}' is not modelled; {modelled} is")
    optimizer = _PROJECTING[kind][_check_base(keys, reading, switch, tuple(_PROJECTING[kind]))]
    if optimizer is None:
        raise keys.not_modelled("optim", "GaLore over paged states is not modelled; adamw_8bit is")
    reading.say("optimizer", optimizer, keys.where(switch))
    if keys.flag(f"{kind}_layerwise"):
        say_in_backward(keys, f"{kind}_layerwise", reading, "LLaMA-Factory")
    reading.take(keys, {f"{kind}_rank": "optimizer_rank"})
    reading.default("optimizer_rank", 16, f"{_PLACE}: {kind}_rank")


def _check_base(keys: Keys, reading: Reading, name: str, bases: tuple[str, ...]) -> str:
    """What LLaMA-Factory makes the optimizer of; others are refused.

    Where nothing is said it is the Trainer's, which is fused with torch 2.8 and later (transformers 5.6.0
    training_args.py ``default_optim``); older files ran where it was not.
    """
    base = keys.get("optim") or (
        "adamw_torch_fused" if reading.value("stack") == "llama-factory" else "adamw_torch"
    )
    if base not in bases:
        place = keys.where("optim") if keys.has("optim") else keys.where(name)
        raise UsageError(
            f"{place}: LLaMA-Factory stops beside optim {show(base)}: say optim: {bases[0]} "
            f"[{REFUSED_BY_TOOL}]"
        )
    return str(base)


def _read_badam(keys: Keys, reading: Reading) -> None:
    """BAdam layer by layer: counted while the first layer is trained, below which most activations are kept.

    Weights stay in 16 bits (model/adapter.py init_adapter),
    and nothing casts unless the file says bf16 or fp16 (model/patcher.py
    patch_config: the dtype of the checkpoint).
    """
    for name, (modelled, why) in _BADAM_OTHERS.items():
        if keys.get(name) not in (None, modelled):
            raise keys.not_modelled(name, f"'{show(keys.get(name))}': {why}; {modelled} is")
    if keys.get("badam_switch_mode") == "fixed":
        raise keys.not_modelled(
            "badam_switch_mode", "one fixed layer is not modelled; finetuning_type: freeze is"
        )
    if keys.has("deepspeed"):
        raise keys.not_modelled(
            "use_badam", "BAdam under DeepSpeed is not modelled; on one GPU without it is"
        )
    where = keys.where("use_badam")
    reading.alone = Alone(where, "LLaMA-Factory refuses BAdam on several GPUs without DeepSpeed's ZeRO-3")
    reading.say("optimizer", "badam", where)
    reading.say(
        "train_layers", ("first:1",), where, "one layer after the other: the first one needs the most memory"
    )
    reading.switch("trainable_fp32", False, where)
    reading.remark(
        where, "memory and time are those of steps that train the first layer, the most that any layer needs"
    )
    if reading.needs.pop("precision", None) is not None:
        reading.default(
            "precision", "bf16", "llamafactory 0.9.5 model/patcher.py patch_config: the checkpoint's dtype"
        )
