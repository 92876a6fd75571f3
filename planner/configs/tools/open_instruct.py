"""A training file of open-instruct (YAML):
the arguments of ``open_instruct/finetune.py`` or ``dpo_tune_cache.py``.

Keys and defaults: allenai/open-instruct at e6c3044aa (2026-08-20) and at b08997673 (2024-11-22),
FlatArguments; the launch: scripts/finetune_with_accelerate_config.sh, finetune_lora_with_accelerate_config.sh
and finetune_qlora_with_accelerate_config.sh.
Ignored: rows that a padding token adds to the vocabulary (at most 8).
"""

from __future__ import annotations

from pathlib import Path

from planner.configs.launchers.deepspeed_json import read_deepspeed
from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.launchers.launch import find_launch_files, take_launch_file
from planner.configs.said_by_file import Reading
from planner.configs.shared.age import first_held
from planner.configs.shared.checkpoints import read_checkpoint
from planner.configs.shared.kernels import say_liger
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.stock import stock_file
from planner.configs.shared.trainer_arguments import read_files
from planner.configs.tools.open_instruct_dpo import (
    OLD_TOOL,
    STACK_OF_2024,
    is_dpo,
    read_dpo,
    read_dpo_optimizer,
    read_own_zero,
)
from planner.errors import UsageError, show

TOOL = "open-instruct e6c3044"
STACK = "open-instruct"
MARKS = frozenset(names_in("open-instruct.toml", "marks"))
OLD_KEYS = frozenset(names_in("open-instruct.toml", "old_keys"))
_OTHER_TRAININGS = texts_in("open-instruct.toml", "other_trainings")
_TABLE = {
    "max_seq_length": "seq",
    "per_device_train_batch_size": "batch",
    "gradient_accumulation_steps": "grad_accum",
    "num_train_epochs": "epochs",
}
_DEFAULTS = {"batch": 8, "grad_accum": 1, "epochs": 2}
_UNMODELLED = texts_in("open-instruct.toml", "unmodelled")
# What its scripts hand to ``accelerate launch``, except for the one of QLoRA.
LAUNCHED_WITH = Path("configs/ds_configs/stage3_no_offloading_accelerate.conf")


def read_open_instruct(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a file of open-instruct says."""
    for name, why in _OTHER_TRAININGS.items():
        if keys.has(name):
            raise keys.not_modelled(name, why)
    keys.refuse_switched_on(_UNMODELLED)
    keys.refuse_above_one({"sequence_parallel_size": "a sequence-parallel degree"})
    dpo = is_dpo(keys, reading.script)
    old = None if dpo else first_held(keys, sorted(OLD_KEYS))
    if dpo:
        read_dpo(keys, reading)
    elif old is not None:
        text = "a key that open-instruct of today no longer has, or with which it ends at once"
        reading.take_stack(STACK_OF_2024, OLD_TOOL, keys.where(old), text)
    _read_sizes(keys, reading)
    _read_method(keys, reading, plain_lora=dpo or old is not None)
    _read_model(keys, reading, dpo=dpo)
    _read_loss(keys, reading)
    _read_batches(keys, reading)
    _read_launch(keys, reading, beside)
    keys.skip(names_in("open-instruct.toml", "harmless"))


def _read_sizes(keys: Keys, reading: Reading) -> None:
    reading.take(keys, _TABLE)
    if reading.value("seq") is None:
        reading.needs["seq"] = (
            f"{keys.path}: max_seq_length is not given, so the longest sample decides: say --seq"
        )
    for name, value in _DEFAULTS.items():
        reading.default(
            name, value, "allenai/open-instruct e6c3044aa open_instruct/finetune.py FlatArguments"
        )
    if keys.count("max_train_steps") is not None:
        reading.said.pop("epochs", None)
        text = "the run ends by steps: its time follows from --samples and --epochs only"
        reading.remark(keys.where("max_train_steps"), text)


def _read_method(keys: Keys, reading: Reading, *, plain_lora: bool) -> None:
    """What is trained, and whether layers are checkpointed.

    ``plain_lora``: adapters over 16 bits are trained without checkpoints, whatever a file says.  So up to
    2026-01-15 (3c1fe4171), b08997673 finetune.py:700-718, and e6c3044aa dpo_tune_cache.py still.
    """
    lora = keys.flag("use_lora")
    quantised = keys.flag("use_qlora")
    again = keys.flag("gradient_checkpointing")
    if quantised and not lora:
        raise UsageError(
            f"{keys.where('use_qlora')}: a quantised base is trained through adapters only; say "
            "use_lora: true"
        )
    place = "allenai/open-instruct e6c3044aa open_instruct/finetune.py FlatArguments.use_lora"
    if lora is None:
        reading.default("method", "full", place)
    else:
        method = "qlora" if quantised else "lora" if lora else "full"
        reading.say("method", method, keys.where("use_qlora" if quantised else "use_lora"))
    if lora:
        reading.take(keys, {"lora_rank": "lora_rank", "lora_dropout": "lora_dropout"})
    keys.skip(("lora_rank", "lora_dropout", "lora_alpha"))
    if lora and not quantised and plain_lora and (again or reading.value("gradient_checkpointing")):
        reading.said.pop("gradient_checkpointing", None)
        reading.remark(keys.where("gradient_checkpointing"), "has no effect beside use_lora in this version")
    elif again is not None:
        reading.say("gradient_checkpointing", again, keys.where("gradient_checkpointing"))
    _read_optimizer(keys, reading, quantised=bool(quantised))


def _read_optimizer(keys: Keys, reading: Reading, *, quantised: bool) -> None:
    """AdamW of torch, or over 4 bits the paged one of bitsandbytes (e6c3044aa finetune.py:671-680)."""
    eight, fused = keys.flag("use_8bit_optimizer"), keys.flag("fused_optimizer")
    if read_dpo_optimizer(keys, reading):
        return
    if quantised:
        if eight:
            reading.say("optimizer", "paged_adamw_8bit", keys.where("use_8bit_optimizer"))
        return
    if eight:
        reading.remark(keys.where("use_8bit_optimizer"), "has no effect without use_qlora")
    if fused is False:
        reading.say("optimizer", "adamw_torch", keys.where("fused_optimizer"))


def _read_model(keys: Keys, reading: Reading, *, dpo: bool) -> None:
    """The model, how it is loaded and its attention."""
    read_checkpoint(keys, "model_name_or_path", reading)
    other = keys.text("config_name")
    if other not in (None, keys.get("model_name_or_path")):
        raise keys.not_modelled(
            "config_name", f"the configuration of another model ({show(other)}) is not modelled"
        )
    flash = keys.flag("use_flash_attn")
    if flash is not None:
        reading.say("attention", "flash2" if flash else "eager", keys.where("use_flash_attn"))
    if keys.flag("use_liger_kernel"):
        say_liger(reading, keys.where("use_liger_kernel"))
        if dpo:
            # dpo_tune_cache.py: fused_linear_cross_entropy=False.
            reading.said.pop("loss")
        else:
            reading.switch("liger_loss", True, keys.where("use_liger_kernel"))
        # Transformers then takes fp32 (4.x) or the dtype of the checkpoint (5.x).
        place = (
            "allenai/open-instruct e6c3044aa open_instruct/finetune.py:577-587, e75f1f2b2:555-565: no "
            "dtype is given"
        )
        reading.default("load_dtype", "checkpoint" if reading.value("stack") == STACK else "fp32", place)


def _read_loss(keys: Keys, reading: Reading) -> None:
    """The model's own loss; a sum is computed a second time from the logits,
    beside it (b08997673 finetune.py:915-937).
    """
    kind = keys.text("reduce_loss")
    if kind not in (None, "mean"):
        raise keys.not_modelled(
            "reduce_loss", f"'{show(kind)}' is not modelled: it is a second loss beside the model's own"
        )
    if keys.flag("load_balancing_loss"):
        reading.remark(keys.where("load_balancing_loss"), "the routers' loss is not counted")


def _read_batches(keys: Keys, reading: Reading) -> None:
    if keys.flag("packing"):
        # TensorDataCollatorWithFlattening joins the samples of a batch, and no others.
        reading.remark(keys.where("packing"), "counted as padded to the longest sample, which is more")
    if keys.flag("sync_each_batch"):
        reading.switch("fsdp_no_sync", "neither", keys.where("sync_each_batch"))


def _read_launch(keys: Keys, reading: Reading, beside: Beside) -> None:
    """The launch files that are given or lie alone beside this one, else those of its own scripts."""
    if not beside.given and beside.look:
        found = find_launch_files(keys.path).beside
        beside = take_launch_file(found[0], reading, beside) if len(found) == 1 else beside
    if read_own_zero(keys, reading):
        reading.default("precision", "bf16-mixed", "allenai/open-instruct scripts/: --mixed_precision bf16")
    elif beside.given:
        read_files(keys, reading, beside)
    elif beside.look and reading.value("method") != "qlora":
        _read_own_script(keys, reading)
    if reading.value("method") == "qlora" and reading.sharding.engine == "deepspeed":
        place = "FlatArguments of its finetune.py call use_qlora not compatible with DeepSpeed"
        raise UsageError(
            f"{keys.where('use_qlora')}: {place}, which {reading.said['sharding'].origin} asks for"
        )
    _read_precision(keys, reading, beside)


def _read_own_script(keys: Keys, reading: Reading) -> None:
    """ZeRO-3, as the scripts for such files launch them."""
    stock = stock_file(LAUNCHED_WITH)
    if stock is None:
        return
    document, source = stock
    script = f"scripts/{'dpo_train' if reading.value('task') else 'finetune'}_with_accelerate_config.sh"
    text = f"counted as {script} launches it, with {LAUNCHED_WITH}; --accelerate FILE says another"
    reading.remark(str(keys.path), text)
    reading.default("precision", "bf16-mixed", f"allenai/open-instruct {script}: --mixed_precision bf16")
    part = Keys(document.path, document.table)
    read_deepspeed(part, reading)
    reading.finish(part)
    for name in ("sharding", "offload"):
        said = reading.said.pop(name, None)
        if said is not None:
            reading.default(name, said.value, f"{source}: {said.origin}")


def _read_precision(keys: Keys, reading: Reading, beside: Beside) -> None:
    """``--mixed_precision`` of the launch, which the script for QLoRA leaves out.

    A DeepSpeed file whose ``bf16`` is ``auto`` leaves it to the launch line as well.
    """
    if reading.value("precision") is not None:
        return
    if beside.deepspeed is not None:
        script = "allenai/open-instruct scripts/finetune_with_accelerate_config.sh: --mixed_precision bf16"
        reading.default("precision", "bf16-mixed", script)
        return
    if reading.value("method") == "qlora" and beside.look and not (reading.launch or beside.given):
        script = "scripts/finetune_qlora_with_accelerate.sh"
        text = f"counted as {script} launches it, without --mixed_precision; --accelerate FILE says another"
        reading.remark(str(keys.path), text)
        reading.default("precision", "bf16", f"allenai/open-instruct {script}: no --mixed_precision")
        return
    without = (
        "the launch line says no --mixed_precision"
        if reading.launch or beside.given
        else "the launch line is not known"
    )
    sentence = f"{keys.path}: {without}: say --precision bf16-mixed, or bf16 where there is none"
    reading.needs["precision"] = sentence
    reading.either["precision"] = (sentence, ("bf16-mixed", "bf16"))
