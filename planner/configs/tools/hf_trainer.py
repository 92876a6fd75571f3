"""TrainingArguments of Transformers by themselves (YAML or JSON),
with the model where a script's arguments name it.

What trains, and in which dtype it is loaded, is the script's, so the file leaves it open.
"""

from __future__ import annotations

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading
from planner.configs.shared.age import TRANSFORMERS_4, first_held
from planner.configs.shared.checkpoints import read_checkpoint
from planner.configs.shared.kernels import read_attention, read_dtype
from planner.configs.shared.key_tables import names_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.own_scripts import LENGTHS, leave_dtype, leave_loss
from planner.configs.shared.trainer_arguments import (
    need_precision,
    read_distribution,
    read_precision,
    read_trainer,
)
from planner.configs.yaml_or_json import Document

TOOL = "Transformers 5.23.0"
STACK = "hf-trainer@5"
OLD_STACK = "hf-trainer@4"
_OLD_TOOL = "Transformers 4"
MARKS = frozenset({"per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "optim"})
_NEEDS = {
    "model": "the model is the script's: say --model",
    "method": "what is trained is the script's: say --method full, lora, qlora or int8",
    "seq": "the length is the script's: say --seq",
}
_TABLE = dict.fromkeys(LENGTHS, "seq")
_NOT_KNOWN = "what the script does with it is not known"
_ADAPTERS = {"lora_r": "lora_rank", "lora_rank": "lora_rank", "lora_dropout": "lora_dropout"}
_TARGETS = ("lora_target_modules", "target_modules")
# Names of the model in scripts of one's own; only the first is that of Transformers' examples.
_MODEL_NAMES = ("model_name_or_path", "model_name", "base_model", "model_path", "model_id")
# What a script of one's own may read beside TrainingArguments: only the user knows what it does with it.
_ADAPTS = ("use_lora", "use_peft", "lora_enable")
_QUANTIZES = ("use_qlora", "qlora", "q_lora", "load_in_4bit", "load_in_8bit")
_ASKS_ATTENTION = ("flash_attn", "use_flash_attn", "use_flash_attention", "use_flash_attention_2")
_HARMLESS = names_in("transformers.toml", "harmless_of_examples")


def is_example(document: Document) -> bool:
    """Whether a file is for Transformers' run_clm.py or its kin, which alone have a length of this name."""
    return "block_size" in document.table and "model_name_or_path" in document.table


def read_hf_trainer(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what TrainingArguments and the usual arguments of a script say."""
    # An argument torch_dtype of a script of one's own tells no age.
    marks = TRANSFORMERS_4 if beside.own else (*TRANSFORMERS_4, "torch_dtype")
    if (old := first_held(keys, marks)) is not None:
        reading.take_stack(OLD_STACK, _OLD_TOOL, keys.where(old), "a key that Transformers 5 no longer has")
    reading.take(keys, _TABLE)
    asks = _read_adapters(keys, reading)
    _read_model(keys, reading)
    read_dtype(keys, reading)
    _read_kernel(keys, reading)
    # transformers 5.23 examples/pytorch/language-modeling/run_clm.py main.
    read_trainer(keys, reading, evaluates_behind=True)
    if old is not None and reading.value("loss") == "liger":
        reading.switch("liger_loss", True, keys.where("use_liger_kernel"))
    if keys.has("block_size"):
        # Texts are joined and cut into rows of this length (run_clm.py group_texts); nothing adds adapters.
        place = "transformers 5.23.0 examples/pytorch/language-modeling/run_clm.py"
        if not (asks or beside.own):
            reading.default("method", "full", place)
        reading.default("padding", "packed", f"{place}: group_texts")
    read_precision(keys, reading)
    if reading.value("precision") is None:
        need_precision(reading)
    read_distribution(keys, reading, beside)
    keys.skip(_HARMLESS)
    _ask(keys, reading, asks)
    if beside.own:
        _leave_open(keys, reading, adapts=bool(asks))


def _ask(keys: Keys, reading: Reading, adapts: str) -> None:
    for name, sentence in _NEEDS.items():
        if reading.value(name) is None:
            reading.needs[name] = f"{keys.path}: {sentence}"
    if adapts:
        place = keys.where(adapts)
        reading.needs["method"] = f"{place}: {_NOT_KNOWN}: say --method lora, qlora, int8 or full"


def _leave_open(keys: Keys, reading: Reading, *, adapts: bool) -> None:
    """Enter what a script of one's own may do, of which each is tried."""
    if "method" in reading.needs:
        methods = ("lora", "qlora") if adapts and not _switched_off(keys) else ("full", "lora", "qlora")
        reading.either["method"] = (reading.needs["method"], methods)
    if adapts and reading.value("lora_rank") is None:
        sentence = f"{keys.path}: the rank of the adapters is the script's: say --lora-rank"
        reading.either["lora_rank"] = (sentence, ("8", "64"))
    leave_loss(keys, reading)
    if not keys.has("block_size"):
        leave_dtype(keys, reading)


def _read_model(keys: Keys, reading: Reading) -> None:
    name = next((each for each in _MODEL_NAMES if keys.has(each)), _MODEL_NAMES[0])
    if name != _MODEL_NAMES[0]:
        reading.remark(keys.where(name), "taken as the model that is trained; --model says another")
    read_checkpoint(keys, name, reading)


def _read_kernel(keys: Keys, reading: Reading) -> None:
    read_attention(keys, "attn_implementation", reading)
    flash = next((name for name in _ASKS_ATTENTION if keys.flag(name)), "")
    if flash and reading.value("attention") is None:
        reading.say("attention", "flash2", keys.where(flash))
        reading.remark(keys.where(flash), "taken as FlashAttention 2; --attention says another")


def _switched_off(keys: Keys) -> bool:
    return any(keys.flag(name) is False for name in _ADAPTS)


def _read_adapters(keys: Keys, reading: Reading) -> str:
    """Enter rank and targets by the names that scripts commonly have for them; the first key, if any, for
    which the method has to be said.
    """
    switches = [keys.flag(name) for name in _ADAPTS]
    on = [name for name in (*_ADAPTS, *_QUANTIZES) if keys.flag(name)]
    if False in switches and True not in switches:
        keys.skip((*_ADAPTERS, *_TARGETS))
        off = next(name for name in _ADAPTS if keys.flag(name) is False)
        if not on:
            reading.say("method", "full", keys.where(off))
            reading.remark(keys.where(off), "taken as full fine-tuning; --method says another")
        return on[0] if on else ""
    reading.take(keys, _ADAPTERS)
    for name in _TARGETS:
        if targets := keys.names(name):
            said = ("all-linear",) if targets in (("all",), ("all-linear",)) else targets
            reading.say("lora_targets", said, keys.where(name))
    return next((name for name in (*on, *_ADAPTERS, *_TARGETS) if keys.has(name)), "")
