"""Optimizers that LLaMA-Factory makes in the place of the Trainer's.

Source: llamafactory 0.9.5 train/trainer_utils.py create_custom_optimizer, hparams/finetuning_args.py and, for
what it refuses, hparams/parser.py:388-398 (the same in 0.7.1 for GaLore and BAdam).
"""

from __future__ import annotations

from planner.configs.said_by_file import Alone, Reading
from planner.configs.shared.keys import Keys
from planner.errors import REFUSED_BY_TOOL, UsageError, show

_PLACE = "llamafactory 0.9.5 hparams/finetuning_args.py"
_GALORE = (
    "GaLore is not modelled (nobody measured the workspace of its decomposition); without the key "
    "AdamW is counted"
)
_GALORE_BASES = ("adamw_torch", "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "adafactor")
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
        _read_apollo(keys, reading)
    if keys.flag("use_badam"):
        _read_badam(keys, reading)
    if keys.flag("use_galore"):
        _read_galore(keys, reading)


def _read_apollo(keys: Keys, reading: Reading) -> None:
    """APOLLO over all linear layers, by random matrices (_create_apollo_optimizer)."""
    if keys.names("apollo_target") not in ((), ("all",)):
        raise keys.not_modelled("apollo_target", "APOLLO over some matrices only is not modelled; all is")
    for name, default in (("apollo_proj", "random"), ("apollo_proj_type", "std")):
        if keys.get(name) not in (None, default):
            raise keys.not_modelled(name, f"'{show(keys.get(name))}' is not modelled; {default} is")
    _check_base(keys, reading, "use_apollo", ("adamw_torch",))
    reading.say("optimizer", "apollo_adamw", keys.where("use_apollo"))
    if keys.flag("apollo_layerwise"):
        reading.say("optimizer_in_backward", True, keys.where("apollo_layerwise"))
        reading.alone = Alone(
            keys.where("apollo_layerwise"), "LLaMA-Factory refuses layer-wise APOLLO on several GPUs"
        )
    reading.take(keys, {"apollo_rank": "optimizer_rank"})
    reading.default("optimizer_rank", 16, f"{_PLACE}: apollo_rank")


def _check_base(keys: Keys, reading: Reading, name: str, bases: tuple[str, ...]) -> None:
    """Refuse what LLaMA-Factory makes no such optimizer of, and accumulation beside one for each layer.

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
    layerwise = name.replace("use_", "") + "_layerwise"
    if keys.flag(layerwise) and (keys.count("gradient_accumulation_steps") or 1) > 1:
        raise keys.stops(layerwise, "LLaMA-Factory stops beside gradient_accumulation_steps above 1")


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


def _read_galore(keys: Keys, reading: Reading) -> None:
    """GaLore, which is refused; layer by layer on several GPUs LLaMA-Factory refuses it itself."""
    _check_base(keys, reading, "use_galore", _GALORE_BASES)
    if not keys.flag("galore_layerwise"):
        raise keys.not_modelled("use_galore", _GALORE)
    refused = "LLaMA-Factory refuses layer-wise GaLore on several GPUs"
    reading.alone = Alone(keys.where("galore_layerwise"), refused, f"{keys.where('use_galore')}: {_GALORE}")
