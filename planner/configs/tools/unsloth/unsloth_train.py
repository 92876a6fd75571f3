"""A file of ``unsloth train`` (YAML or JSON), or the options of its command line in such sections.

Keys and defaults: unsloth 2026.10.9 unsloth_cli/config.py; what becomes of them:
studio/backend/core/training/trainer.py and unsloth_cli/commands/train.py there.
"""

from __future__ import annotations

from typing import Any

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.trainer_arguments import ends_by_steps, read_given_launch
from planner.configs.tools.unsloth import unsloth_cli
from planner.configs.tools.unsloth.unsloth_cli import (
    read_model,
    say_packing,
    say_short,
    stop_at_towers,
)
from planner.configs.yaml_or_json import Document
from planner.errors import show
from planner.words import words

TOOL, STACK = unsloth_cli.TOOL, unsloth_cli.STACK
_PLACE = "unsloth 2026.10.9 unsloth_cli/config.py"
_SECTIONS = ("data", "training", "lora", "logging")
_OF_TRAINING = {
    "max_seq_length": "seq",
    "batch_size": "batch",
    "gradient_accumulation_steps": "grad_accum",
    "num_epochs": "epochs",
}
_OF_LORA = {"lora_r": "lora_rank", "lora_dropout": "lora_dropout"}
_DEFAULTS = {"seq": 2048, "batch": 2, "grad_accum": 4, "epochs": 3, "optimizer": "adamw_8bit"}
_HARMLESS = {
    section: words(names) for section, names in texts_in("unsloth.toml", "harmless_of_sections").items()
}
_CHECKPOINTING = {
    "unsloth": ("", "unsloth"),
    "true": ("true", "1", "yes"),
    "none": ("false", "0", "no", "none", "off"),
}


def is_unsloth(document: Document) -> bool:
    """Whether a file has sections of ``unsloth train``, whose keys no other tool has there."""
    training, lora = (document.table.get(name) for name in ("training", "lora"))
    return isinstance(document.table.get("model"), str) and (
        (isinstance(training, dict) and bool({"training_type", "max_seq_length"} & training.keys()))
        or (isinstance(lora, dict) and "lora_r" in lora)
    )


def in_sections(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a command line over the file that was read for it (unsloth_cli/config.py apply_overrides:
    each is looked for in the sections by its name).
    """
    table = {name: value for name, value in options.items() if name in ("model", *_SECTIONS)}
    for name, value in options.items():
        owner = next((each for each in _SECTIONS if name in _keys_of(each)), None)
        if owner is not None and name not in table:
            before = table.get(owner)
            table[owner] = {**(before if isinstance(before, dict) else {}), name: value}
        elif owner is None:
            table[name] = value
    return table


def _keys_of(section: str) -> tuple[str, ...]:
    read = {
        "training": (*_OF_TRAINING, "training_type", "load_in_4bit", "max_steps", "packing"),
        "lora": (*_OF_LORA, "target_modules", "use_loftq", "use_dora"),
    }
    more = ("gradient_checkpointing",) if section == "training" else ()
    return (*_HARMLESS[section], *read.get(section, ()), *more)


def read_unsloth(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a file of ``unsloth train`` says.

    Raises:
        UsageError: a value or a key with which it ends.
        NotModelledError: something that no formula covers.
    """
    parts = {name: keys.section(name) for name in _SECTIONS}
    training = parts["training"]
    reading.take(training, _OF_TRAINING)
    for name, value in _DEFAULTS.items():
        reading.default(name, value, _PLACE)
    ends_by_steps(training, reading)
    adapters = _read_method(training, parts["lora"], reading)
    read_checkpointing(training, "gradient_checkpointing", reading)
    say_packing(training, "packing", reading)
    four = training.flag("load_in_4bit")
    read_model(keys, "model", reading, four_bits=adapters and four is not False)
    stop_at_towers(keys, "model", reading)
    read_given_launch(reading, beside)
    for name, part in parts.items():
        part.skip(_HARMLESS[name])
        _stop_at_unknown(part)
    _stop_at_unknown(keys)


def _stop_at_unknown(part: Keys) -> None:
    """Raises: UsageError where a section has a key that its class forbids (``extra = "forbid"``)."""
    for name in part.left_over_here():
        raise part.stops(show(name), "unsloth train stops at keys that it does not know")


def _read_method(training: Keys, lora: Keys, reading: Reading) -> bool:
    """What is trained: adapters, unless ``training_type`` is ``full``, whose other keys then say nothing."""
    kind = training.text("training_type")
    method = "lora" if kind is None else kind.strip().lower()
    if method not in ("lora", "full"):
        raise training.wrong("training_type", "lora or full", kind)
    if kind is None:
        reading.default("method", "lora", _PLACE)
    else:
        reading.say("method", method, training.where("training_type"))
    if method == "full":
        lora.skip((*_OF_LORA, "target_modules", "use_loftq", "use_dora"))
        return False
    reading.take(lora, _OF_LORA)
    reading.default("lora_rank", 64, _PLACE)
    lora.refuse_switched_on({"use_loftq": "LoftQ in Unsloth is not modelled"})
    if lora.flag("use_dora"):
        reading.say("dora", True, lora.where("use_dora"))
    targets = lora.names("target_modules")
    if targets:
        named = tuple(each for each in targets if each != "all-linear") or targets[:1]
        reading.say("lora_targets", named, lora.where("target_modules"))
    return True


def read_checkpointing(part: Keys, name: str, reading: Reading) -> None:
    """Enter what a key says of checkpoints: ``unsloth`` moves inputs of layers to the host, ``true`` keeps
    them, ``none`` runs nothing again.

    Raises:
        InputFileError: something else.
    """
    value = part.get(name)
    if value is None:
        say_short(reading)
        return
    word = str(value).strip().lower()
    kind = next((each for each, words in _CHECKPOINTING.items() if word in words), None)
    if kind is None:
        raise part.wrong(name, "unsloth, true or none", value)
    where = part.where(name)
    reading.say("gradient_checkpointing", kind != "none", where)
    if kind == "unsloth":
        say_short(reading)
    if reading.value("offload") is None:
        reading.say("offload", "activations" if kind == "unsloth" else "none", where)
