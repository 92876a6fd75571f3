"""Arguments of ``finetuning.py`` of llama-cookbook, which was called llama-recipes until January 2025.

Keys and defaults: meta-llama/llama-cookbook at 0e003351 (2025-10-27) and at v0.0.2 (2024-05-17)
configs/training.py, fsdp.py, peft.py and quantization.py; what becomes of them: finetuning.py,
utils/train_utils.py and config_utils.py there.  An argument sets the key of that name in every table, and
``--TABLE.KEY`` in one (config_utils.py ``update_config``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.launchers.launched_processes import LOADS_ON_HOST
from planner.configs.said_by_file import Alone, Reading, Stop
from planner.configs.shared.age import enter_age
from planner.configs.shared.checkpoints import read_checkpoint
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.trainer_arguments import read_given_launch
from planner.configs.yaml_or_json import Document
from planner.errors import show

TOOL = "llama-cookbook 0.0.5"
STACK = "llama-cookbook"
OLD_STACK = "llama-recipes"
_RELEASES = {STACK: (STACK, TOOL), OLD_STACK: (OLD_STACK, "llama-recipes 0.0.2")}
MARKS = frozenset(names_in("llama-cookbook.toml", "marks"))
_PLACE = "meta-llama/llama-cookbook 0e003351 src/llama_cookbook/configs"
_SOURCE = "meta-llama/llama-cookbook 0e003351 src/llama_cookbook/finetuning.py"
# Folders of the script up to 6d449a85 (2024-03-13) and 4344a420 (2024-06-26), and since.  808a3f7a of
# 2024-07-11 changed how models are loaded.
_OLD_FOLDERS = (("examples",), ("recipes", "finetuning"))
_NEW_FOLDERS = (("quickstart", "finetuning"), ("getting-started", "finetuning"))
_NEW_PACKAGE = "llama_cookbook"
# Tables whose keys no other table has.
_TABLES = ("train_config", "fsdp_config", "lora_config", "quantization_config")
_OF_TWO = ("mixed_precision", "use_fp16")
_SIZES = {
    "batch_size_training": "batch",
    "gradient_accumulation_steps": "grad_accum",
    "num_epochs": "epochs",
}
_DEFAULTS = {"batch": 4, "grad_accum": 1, "epochs": 3.0}
_LENGTH = 4096
_UNMODELLED = texts_in("llama-cookbook.toml", "unmodelled")
_REMARKS = texts_in("llama-cookbook.toml", "remarks")
_ALONE = (
    "without --enable_fsdp each process trains a whole model on the first GPU: give one GPU and one process, "
    "or say --enable_fsdp"
)

_WHOLE = (
    f"without {'=1 '.join(LOADS_ON_HOST)}=1 before the command each GPU has all of a packed model until FSDP "
    "divides it, and that is not modelled here"
)


def read_llama_cookbook(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a command line of the script says.

    Raises:
        UsageError: a value with which the script ends.
        NotModelledError: something that no formula covers.
    """
    _open_tables(keys)
    keys.refuse_switched_on(_UNMODELLED)
    old = _read_age(keys, reading, beside.stack)
    fsdp = bool(keys.flag("enable_fsdp"))
    _read_sizes(keys, reading)
    _read_method(keys, reading, fsdp=fsdp)
    if fsdp:
        _read_fsdp(keys, reading, old=old)
    else:
        keys.skip(("fsdp_activation_checkpointing", "fsdp_cpu_offload", "sharding_strategy"))
        place = keys.where("enable_fsdp") if keys.has("enable_fsdp") else str(keys.path)
        reading.alone = Alone(place, unread=_ALONE)
    _read_precision(keys, reading, fsdp=fsdp, old=old)
    _read_optimizer(keys, reading)
    read_checkpoint(keys, "model_name", reading)
    where = keys.where("model_name")
    sentence = f"{where}: finetuning.py takes models of the type llama alone (mllama is not modelled)"
    reading.stops.append(Stop(lambda model: model.architecture != "llama", sentence))
    read_given_launch(reading, beside)
    for name, text in _REMARKS.items():
        if keys.flag(name):
            reading.remark(keys.where(name), text)
    keys.skip((*names_in("llama-cookbook.toml", "harmless"), *LOADS_ON_HOST))
    keys.skip(each for each in keys.left_over_here() if _is_of_data(each))


def _open_tables(keys: Keys) -> None:
    """Let ``--TABLE.KEY`` be asked for as ``KEY``."""
    dotted = [name for name in keys.left_over_here() if name.partition(".")[0] in _TABLES]
    for name in dotted:
        table, _, key = name.partition(".")
        if (table, key) == ("train_config", "mixed_precision"):
            keys.skip((name,))
        elif key in _OF_TWO and (table, key) != ("fsdp_config", "mixed_precision"):
            raise keys.not_modelled(name, f"--{key}, which sets it for weights and FSDP alike, is modelled")
    keys.rename({name: name.partition(".")[2] for name in dotted})


def _is_of_data(name: str) -> bool:
    table = name.partition(".")[0]
    return table.endswith("_dataset") or table == "wandb_config"


def is_llama_cookbook(document: Document) -> bool:
    """Whether arguments are the script's: one that no other tool has."""
    return bool(MARKS & document.table.keys())


def _read_age(keys: Keys, reading: Reading, asked: str) -> bool:
    """Whether the script is that before 808a3f7a (2024-07-11): its place tells, or bits by their name, which
    are newer; else it may be either.
    """
    script = Path(reading.script)
    folders = script.parent.parts
    named = keys.get("quantization") in ("4bit", "8bit")
    new = named or script.name.startswith(_NEW_PACKAGE) or _ends(folders, _NEW_FOLDERS)
    ages = (STACK,) if new else (OLD_STACK,) if _ends(folders, _OLD_FOLDERS) else (STACK, OLD_STACK)
    sign = (str(keys.path), f"{show(reading.script)} is where the script lay until June 2024")
    return enter_age(reading, ages, _RELEASES, asked, sign) == OLD_STACK


def _ends(folders: tuple[str, ...], names: Sequence[tuple[str, ...]]) -> bool:
    return any(folders[-len(each) :] == each for each in names)


def _read_sizes(keys: Keys, reading: Reading) -> None:
    """Batches and lengths; padded samples are not cut, and batches are of samples of like length.

    Source: data/concatenator.py, data/sampler.py.
    """
    reading.take(keys, _SIZES)
    for name, value in _DEFAULTS.items():
        reading.default(name, value, f"{_PLACE}/training.py")
    if keys.is_on("max_train_step"):
        reading.said.pop("epochs", None)
        text = "the run ends by steps: its time follows from --samples and --epochs only"
        reading.remark(keys.where("max_train_step"), text)
    if keys.flag("run_validation") is not False:
        reading.take(keys, {"val_batch_size": "eval_batch"})
        reading.default("eval_batch", 1, f"{_PLACE}/training.py: run_validation, val_batch_size")
    strategy = keys.text("batching_strategy")
    if strategy not in (None, "packing", "padding"):
        raise keys.stops("batching_strategy", f"it is packing or padding, not {show(strategy)}")
    if strategy == "padding":
        where = keys.where("batching_strategy")
        reading.say("padding", "longest", where)
        reading.switch("sorts_lengths", True, where)
        reading.needs["seq"] = f"{where}: samples are not cut, so the longest one decides: say --seq"
        keys.skip(("context_length",))
        return
    reading.take(keys, {"context_length": "seq"})
    reading.default("seq", _LENGTH, f"{_PLACE}/training.py: context_length")


def _read_method(keys: Keys, reading: Reading, *, fsdp: bool) -> None:
    """What is trained, and how the base is stored."""
    frozen = "frozen layers of full fine-tuning are not modelled here"
    if not keys.flag("use_peft"):
        if fsdp:
            keys.refuse_switched_on({"freeze_layers": frozen})
        keys.refuse_switched_on({"quantization": "a quantised base without --use_peft is not modelled"})
        where = keys.where("use_peft")
        if keys.has("use_peft"):
            reading.say("method", "full", where)
        else:
            reading.default("method", "full", f"{_PLACE}/training.py: use_peft")
        keys.skip(("peft_method", "r", "lora_alpha", "lora_dropout", "target_modules", "quant_type"))
        return
    kind = keys.text("peft_method")
    if kind not in (None, "lora"):
        raise keys.not_modelled("peft_method", f"{show(kind)} is not modelled; lora is")
    reading.say("method", "lora", keys.where("use_peft"))
    reading.take(keys, {"r": "lora_rank", "lora_dropout": "lora_dropout"})
    _read_targets(keys, reading)
    _read_quantisation(keys, reading, fsdp=fsdp)


def _read_targets(keys: Keys, reading: Reading) -> None:
    """A list of names, as Python or bare; PEFT takes one name for an expression."""
    name = "target_modules"
    value = keys.get(name)
    if value is None:
        return
    words = value if isinstance(value, list) else str(value).strip("[]()").split(",")
    targets = tuple(str(word).strip(" '\"") for word in words)
    several = isinstance(value, list) or len(targets) > 1 or str(value).startswith(("[", "("))
    if not all(targets) or (not several and targets != ("all-linear",)):
        raise keys.wrong(name, "a list of names or all-linear", value)
    reading.say("lora_targets", targets, keys.where(name))


def _read_quantisation(keys: Keys, reading: Reading, *, fsdp: bool) -> None:
    """``--quantization`` in 4 or 8 bits; alone it means 8."""
    name = "quantization"
    packed = ("quant_type", "use_double_quant", "quant_storage", "compute_dtype")
    if not keys.is_on(name):
        keys.skip(packed)
        return
    value = keys.get(name)
    bits = "8bit" if isinstance(value, bool) or str(value).lower() == "true" else str(value)
    if bits not in ("4bit", "8bit"):
        raise keys.stops(name, f"it is 4bit or 8bit, not {show(value)}")
    if bits == "8bit":
        if fsdp:
            raise keys.stops(name, "finetuning.py stops at 8bit under FSDP")
        reading.say("quantization", "int8", keys.where(name))
        keys.skip(packed)
        return
    kind = keys.text("quant_type") or "fp4"
    if kind not in ("fp4", "nf4"):
        raise keys.wrong("quant_type", "fp4 or nf4", kind)
    if fsdp and not all(keys.flag(each) for each in LOADS_ON_HOST):
        raise keys.not_modelled(name, _WHOLE)
    place = f"{_PLACE}/quantization.py"
    reading.say("quantization", kind, keys.where("quant_type" if keys.has("quant_type") else name))
    reading.default("double_quant", bool(keys.flag("use_double_quant")), place)
    for each in ("quant_storage", "compute_dtype"):
        if keys.text(each) not in (None, "bfloat16"):
            raise keys.not_modelled(each, "another dtype than bfloat16 is not modelled here")
    reading.default("quant_storage", "bf16", place)


def _read_fsdp(keys: Keys, reading: Reading, *, old: bool) -> None:
    """FSDP1 with a unit for each layer, and for each matrix of an adapter."""
    reading.say("sharding", "fsdp1", keys.where("enable_fsdp"))
    if keys.has("sharding_strategy"):
        raise keys.stops("sharding_strategy", "it arrives as text, of which FSDP knows none")
    if keys.flag("fsdp_cpu_offload"):
        reading.say("offload", "optimizer+params", keys.where("fsdp_cpu_offload"), "FSDP offloads both")
    again = keys.flag("fsdp_activation_checkpointing")
    if again is None:
        reading.default("gradient_checkpointing", True, f"{_PLACE}/fsdp.py: fsdp_activation_checkpointing")
    else:
        reading.say("gradient_checkpointing", again, keys.where("fsdp_activation_checkpointing"))
    if old:
        place = "llama-recipes v0.0.2 policies/activation_checkpointing_functions.py: NO_REENTRANT"
        reading.default("checkpoint_reentrant", False, place)
    # Nothing says use_orig_params but for adapters.
    if reading.value("method") == "full":
        reading.switch("fsdp1_flat", True, f"{_SOURCE}: use_orig_params")


def _read_precision(keys: Keys, reading: Reading, *, fsdp: bool, old: bool) -> None:
    """In what weights are loaded and products computed.

    FSDP's policy casts what it gathers; weights that are in its dtype already stay as they are.
    """
    pure, half = bool(keys.flag("pure_bf16")), bool(keys.flag("use_fp16"))
    mixed = keys.flag("mixed_precision") is not False and not pure
    adapters = reading.value("method") == "lora"
    if half:
        where = keys.where("use_fp16")
        if not (mixed if fsdp else adapters):
            raise keys.not_modelled(
                "use_fp16", "without adapters or FSDP's mixed precision it is not modelled"
            )
        reading.say("precision", "fp16-mixed" if adapters or old else "fp16", where)
        if not old:
            reading.say("load_dtype", "fp16", where)
        return
    if not fsdp:
        return
    if pure and reading.value("quantization") is None:
        reading.say("load_dtype", "bf16", keys.where("pure_bf16"))
        reading.say("precision", "bf16", keys.where("pure_bf16"))
    elif mixed and (adapters or old):
        reading.default("precision", "bf16-mixed", f"{_SOURCE}: FSDP's policy, bfSixteen")


def _read_optimizer(keys: Keys, reading: Reading) -> None:
    """AdamW of torch; ``anyprecision`` steps one tensor after the other, with states in 16 bits.

    Source: policies/anyprecision_optimizer.py.
    """
    name = keys.text("optimizer")
    if str(name).lower() in ("none", "adamw"):
        return
    if name != "anyprecision" or not keys.flag("pure_bf16"):
        reading.remark(keys.where("optimizer"), "has no effect but as anyprecision beside pure_bf16")
        return
    if reading.value("load_dtype") != "bf16":
        raise keys.not_modelled("optimizer", "anyprecision is modelled under FSDP alone")
    reading.switch("foreach_step_copies", 0, keys.where("optimizer"))
