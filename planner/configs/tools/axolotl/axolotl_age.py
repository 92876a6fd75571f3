"""The age of an Axolotl file, as its keys tell it, and the optimizer, whose names and default follow it."""

from __future__ import annotations

import re
from enum import IntEnum

from planner.configs.markdown import MARKDOWN
from planner.configs.said_by_file import Reading
from planner.configs.shared.age import enter_age
from planner.configs.shared.checkpoints import came_after
from planner.configs.shared.key_tables import names_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.trainer_arguments import OPTIMIZERS, say_optimizer
from planner.domain.recipes.optimizers import Optimizer
from planner.files.reading import read_text


class Age(IntEnum):
    """The minor version that a file is read for, the last of its stack.

    What parts them: the optimizer's default and attention of 0.3; flags without a successor up to 0.8;
    Transformers 4 up to 0.13.
    """

    OF_2023 = 3
    TO_0_8 = 8
    TO_0_13 = 13
    TODAY = 19

    @property
    def of_2023(self) -> bool:
        """It is of 0.3."""
        return self == Age.OF_2023

    @property
    def old(self) -> bool:
        """It is of 0.8 or before."""
        return self <= Age.TO_0_8

    @property
    def today(self) -> bool:
        """It is of 0.14 or later, which run on Transformers 5."""
        return self == Age.TODAY


_RELEASES = {
    Age.OF_2023: ("axolotl@0.3", "Axolotl 0.3"),
    Age.TO_0_8: ("axolotl@0.8", "Axolotl 0.4 to 0.8"),
    Age.TO_0_13: ("axolotl@0.13", "Axolotl 0.9 to 0.13"),
    Age.TODAY: ("axolotl", "Axolotl 0.19.0"),
}
_KEYS_OF_2023 = names_in("axolotl.toml", "keys_of_2023")
# What 0.4.1 and later stop at, and what says the same there (0.4.0 utils/config.py:204; cc3cebfa7 of 2024-02
# utils/config/models/input/v0_4_1; 0.19.0 utils/schemas/config.py and deprecated.py).
_ENDED_IN_2024 = {
    "max_packed_sequence_len": "a length of packs; say sample_packing: true",
    "tokens": "tokens that are no list; say special_tokens",
}
# These came in 2023-12 (a1da39cd4, 5f79b8242), the last with 0.4.0; so did ``bf16: auto``.
_KEYS_SINCE = ("wandb_name", "evals_per_epoch", "saves_per_epoch", "chat_template")
# These are in 0.6.0 and not in 0.4.0.  Beside one ``wandb_run_id``, a key of 0.19.0 as well
# (utils/schemas/integrations.py), tells no age.
_KEYS_SINCE_0_5 = ("plugins", "eval_strategy")
_OLD_KEYS = names_in("axolotl.toml", "keys_to_0_8")
# Names that went: Transformers dropped the first in 4.50, Axolotl the second between 0.10 and 0.12, the third
# with its first schema (2024-03).
_OLD_VALUES = {"optimizer": "adamw_hf", "gradient_checkpointing": "unsloth", "bf16": "full"}
_KEYS_SINCE_0_9 = names_in("axolotl.toml", "keys_since_0_9")
_KEYS_SINCE_0_14 = names_in("axolotl.toml", "keys_since_0_14")
# Names that ``attn_implementation`` has taken since 0.17 (utils/schemas/enums.py); before it took those of
# kernels on the Hub, beside the flags below.
_NAMED_SINCE_0_17 = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", "xformers")
# Keys that 0.12 and 0.14 dropped from the schema.
_KEYS_TO_0_13 = ("relora_anneal_steps", "relora_warmup_steps", "safe_serialization")
_FLAGS_TO_0_16 = names_in("axolotl.toml", "flags_to_0_16")
# Names beside the Trainer's (axolotl 0.19.0 utils/schemas/enums.py CustomSupportedOptimizers, core/builders/
# base.py _configure_optimizer).  Those with ``ao`` are older ones of the Trainer's (0.8.0
# core/trainers/base.py), in 4 bits with a scale for 128 elements in place of 256.
_OWN_OPTIMIZERS: dict[str, Optimizer] = {
    "ao_adamw_8bit": "adamw_torch_8bit",
    "ao_adamw_4bit": "adamw_torch_4bit",
    "adopt_adamw": "adopt_adamw",
    "adamc": "adamc",
    "muon": "muon",
}
# The last that requirements.txt asks for, in 0.8.1.
_TRANSFORMERS_OF_0_8 = "4.51.0"
# The line that Axolotl writes into a model card (0.19.0 train.py create_modelcard).
_VERSION = re.compile(r"axolotl version: `(\d{1,3})\.(\d{1,3})")
_NOT_UNDER_FSDP2 = ("adamw_8bit", "adamw_bnb_8bit")


def read_age(keys: Keys, reading: Reading, stack: str = "") -> Age:
    """The age of a file, whose stack is entered, and the other stacks that its keys fit as well.

    ``stack``: the one that it is read for, whatever its keys say.

    Raises:
        UsageError: a value that Axolotl of that age stops at.
    """
    ages, *sign = _ages(keys)
    age = enter_age(reading, ages, _RELEASES, stack, (sign[0], sign[1]))
    if not age.of_2023 and (name := _ended_in_2024(keys)):
        raise keys.stops(name, f"Axolotl since 0.4.1 stops at {_ENDED_IN_2024[name]}, or --stack axolotl@0.3")
    return age


def _ended_in_2024(keys: Keys) -> str | None:
    """The key whose value versions since 0.4.1 stop at: a length, or a table in place of a list."""
    given = (name for name in _ENDED_IN_2024 if keys.get(name) and not isinstance(keys.get(name), list))
    return next(given, None)


def _ages(keys: Keys) -> tuple[tuple[Age, ...], str, str]:
    """The ages that a file's keys fit, the likeliest first; the place and the sentence of what tells it.  A
    model card says the version, and a model that 0.8 does not have outweighs keys of its files.
    """
    if keys.path.suffix == MARKDOWN and (found := _VERSION.search(read_text(keys.path))):
        minor = int(found[2]) + 100 * (found[1] != "0")
        age = next((age for age in Age if minor <= age), Age.TODAY)
        return (age,), str(keys.path), f"it says axolotl version {found[1]}.{found[2]}"
    if any(keys.has(name) for name in _KEYS_SINCE_0_14):
        return (Age.TODAY,), "", ""
    flag = next(filter(keys.holds, _FLAGS_TO_0_16), None)
    if keys.get("attn_implementation") in _NAMED_SINCE_0_17 and not (flag and keys.flag(flag)):
        return (Age.TODAY,), "", ""
    newer = came_after(keys, "base_model", _TRANSFORMERS_OF_0_8)
    if not (newer or any(keys.has(name) for name in _KEYS_SINCE_0_9)) and (told := _told_old(keys)):
        age, name, text = told
        return (age,), keys.where(name), text
    if keys.get("adapter") == "lora" and keys.flag("load_in_4bit") and not keys.flag("load_in_8bit"):
        text = "beside adapter: lora Axolotl takes it up to 0.12, and stops since"
        return (Age.TO_0_13,), keys.where("load_in_4bit"), text
    if gone := next(filter(keys.holds, _KEYS_TO_0_13), None):
        return (Age.TO_0_13,), keys.where(gone), f"a key of {_RELEASES[Age.TO_0_13][1]}"
    if flag:
        return (Age.TO_0_13, Age.TODAY), keys.where(flag), "a key of Axolotl's examples up to 0.16"
    return (Age.TODAY, Age.TO_0_13), "", ""


def _told_old(keys: Keys) -> tuple[Age, str, str] | None:
    """The age of a file of 0.8 or before, with the key and the sentence that tell it."""
    since_0_5 = any(keys.holds(name) for name in _KEYS_SINCE_0_5)
    timeless = ("wandb_run_id",) if since_0_5 else ()
    old = next((name for name in _OLD_KEYS if keys.holds(name) and name not in timeless), None)
    old = old or next((name for name, value in _OLD_VALUES.items() if keys.get(name) == value), None)
    of_2023 = next((name for name in _KEYS_OF_2023 if keys.holds(name)), None) or _ended_in_2024(keys)
    if since_0_5 or any(keys.holds(name) for name in _KEYS_SINCE) or keys.get("bf16") == "auto":
        of_2023 = None
    if of_2023 is not None:
        return Age.OF_2023, of_2023, "a key of Axolotl in 2023"
    if old is None:
        return None
    what = f"{_OLD_VALUES[old]} is a name" if old in _OLD_VALUES else "a key"
    return Age.TO_0_8, old, f"{what} of {_RELEASES[Age.TO_0_8][1]}"


def read_optimizer(keys: Keys, reading: Reading, *, age: Age) -> None:
    """The optimizer that a file names; where it names none, that of its age.

    Raises:
        NotModelledError: an optimizer that no formula covers.
        UsageError: one that Axolotl refuses beside the engine.
    """
    if keys.text("optimizer") is not None:
        _refuse_by_engine(keys)
        say_optimizer(keys, "optimizer", {**OPTIMIZERS, **_OWN_OPTIMIZERS}, reading)
    elif age.old:
        place = "axolotl 501b4d137 (2023-11) to 0.7.0 core/trainer_builder.py"
        reading.default("optimizer", "adamw_hf", f"{place}; 0.8.0 takes adamw_torch_fused, which needs less")


def is_fsdp2(keys: Keys) -> bool:
    """Whether the FSDP of a file is the second: by a key of its own, or by one of ``fsdp_config``.

    Source: axolotl 0.19.0 utils/schemas/validation.py check_fsdp_version_in_fsdp_config.
    """
    settings = keys.get("fsdp_config")
    inside = settings if isinstance(settings, dict) else {}
    said = (keys.get("fsdp_version"), inside.get("version"), inside.get("fsdp_version"))
    return str(next(filter(None, said), 1)) == "2"


def _refuse_by_engine(keys: Keys) -> None:
    """What Axolotl stops at (0.19.0 utils/schemas/validation.py check_muon_deepspeed_fsdp, and since 0.9
    check_fsdp2_w_8bit_optimizer).
    """
    name, settings, second = keys.get("optimizer"), keys.get("fsdp_config"), is_fsdp2(keys)
    beside, other = "", "adamw_torch_fused"
    if name == "muon" and keys.get("deepspeed"):
        beside = "DeepSpeed"
    elif name == "muon" and (settings or keys.get("fsdp")) and not second:
        beside = "FSDP without fsdp_version 2"
    elif name in _NOT_UNDER_FSDP2 and settings and second:
        beside, other = "FSDP2", "adamw_torch_8bit"
    if beside:
        raise keys.stops(
            "optimizer", f"Axolotl 0.19.0 stops at {name} with {beside}; leave that out, or say {other}"
        )
