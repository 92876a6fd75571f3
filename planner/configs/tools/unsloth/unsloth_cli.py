"""Arguments of ``unsloth-cli.py``, the script at the root of Unsloth's repository.

Arguments and defaults: unslothai/unsloth at 015bdef0d (2026-08-22) unsloth-cli.py, which since 9a7f3baa1
(2024-06-19) only got more arguments and kept its defaults; what becomes of them: unsloth 2026.10.9.
"""

from __future__ import annotations

import re

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading, Stop
from planner.configs.shared.checkpoints import read_checkpoint
from planner.configs.shared.key_tables import names_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.trainer_arguments import (
    OPTIMIZERS,
    ends_by_steps,
    read_given_launch,
    say_optimizer,
)
from planner.errors import UsageError, show

TOOL = "Unsloth 2026.10"
STACK = "unsloth"
# Arguments that no other tool has.
MARKS = frozenset({"raw_text_file", "save_gguf", "push_gguf", "hub_path", "random_state"})
_PLACE = "unslothai/unsloth 015bdef0d unsloth-cli.py"
_TABLE = {
    "max_seq_length": "seq",
    "per_device_train_batch_size": "batch",
    "gradient_accumulation_steps": "grad_accum",
    "r": "lora_rank",
    "lora_dropout": "lora_dropout",
}
_DEFAULTS = {"seq": 2048, "batch": 2, "grad_accum": 4, "lora_rank": 16, "optimizer": "adamw_8bit"}
_MODEL = "unsloth/llama-3-8b"
_HARMLESS = names_in("unsloth.toml", "harmless_of_cli")
OFFLOADS_FROM = 512
"""Tokens of ``max_seq_length`` below which Unsloth moves no inputs of layers to the host (models/_utils.py
apply_unsloth_gradient_checkpointing)."""


_PARTLY_PACKED = {name.lower(): name for name in names_in("unsloth.toml", "partly_packed")}
_OWNERS = frozenset(names_in("unsloth.toml", "owners"))
_PACKED = re.compile(r"(?:-unsloth)?-bnb-4bit$", re.IGNORECASE)


def read_unsloth_cli(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a command line of the script says.

    Raises:
        UsageError: a value with which the script or Unsloth ends.
        NotModelledError: something that no formula covers.
    """
    reading.take(keys, _TABLE)
    for name, value in _DEFAULTS.items():
        if name != "optimizer" or not keys.has("optim"):
            reading.default(name, value, _PLACE)
    if keys.has("optim"):
        say_optimizer(keys, "optim", OPTIMIZERS, reading)
    if not ends_by_steps(keys, reading) and keys.has("max_steps"):
        reading.default("epochs", 3.0, "transformers 5.23.0 training_args.py: num_train_epochs")
    _read_adapters(keys, reading)
    read_model(keys, "model_name", reading, four_bits=bool(keys.flag("load_in_4bit")))
    if not keys.has("model_name"):
        reading.default("model", _MODEL, _PLACE)
    _read_dtype(keys, reading)
    if keys.get("use_gradient_checkpointing") not in (None, "unsloth"):
        raise _stops(
            keys, "use_gradient_checkpointing", "is handed on as text, of which only 'unsloth' is taken"
        )
    say_short(reading)
    say_packing(keys, "packing", reading)
    stop_at_towers(keys, "model_name", reading)
    read_given_launch(reading, beside)
    keys.skip(_HARMLESS)
    for name in keys.left_over_here():
        raise _stops(keys, name, "is no argument of unsloth-cli.py")


def _stops(keys: Keys, name: str, why: str) -> UsageError:
    return keys.stops(show(name), f"Unsloth stops here: it {why}")


def _read_adapters(keys: Keys, reading: Reading) -> None:
    """Adapters, which the script always trains."""
    if keys.get("bias") not in (None, "none"):
        raise keys.not_modelled("bias", f"trained biases ({show(keys.get('bias'))}) are not modelled")
    if keys.has("loftq_config"):
        raise keys.not_modelled("loftq_config", "LoftQ in Unsloth is not modelled")
    if keys.flag("use_dora"):
        reading.say("dora", True, keys.where("use_dora"))
    reading.default("method", "lora", _PLACE)


def read_model(keys: Keys, name: str, reading: Reading, *, four_bits: bool) -> None:
    """Enter the checkpoint that Unsloth loads for the one that a key names, with a remark where it is
    another, and that a base in 4 bits is one of NF4 with double quantisation.
    """
    named = keys.text(name)
    loaded = None if named is None else loaded_name(named, four_bits=four_bits)
    if four_bits:
        place = "unsloth 2026.10.9 models/llama.py from_pretrained: BitsAndBytesConfig"
        reading.default("quantization", "nf4", place)
        reading.default("double_quant", True, place)
    if loaded in (None, named):
        read_checkpoint(keys, name, reading)
    else:
        other = Keys(keys.path, {name: loaded})
        read_checkpoint(other, name, reading)
        reading.remark(keys.where(name), f"Unsloth loads {loaded} for {show(named)}")


def _read_dtype(keys: Keys, reading: Reading) -> None:
    """``dtype`` is handed on as text.

    Source: unsloth 2026.10.9 models/loader.py:1369-1376, models/rl.py:2657.
    """
    dtype = keys.text("dtype")
    if dtype == "float16":
        raise _stops(keys, "dtype", "computes in bfloat16 wherever the card can; leave the argument out")
    if dtype not in (None, "bfloat16"):
        raise _stops(keys, "dtype", f"takes '{show(dtype)}' for no dtype; leave the argument out")
    if dtype is not None:
        reading.say("load_dtype", "bf16", keys.where("dtype"))


def say_short(reading: Reading) -> None:
    """Short samples are checkpointed as torch does it."""
    seq = reading.value("seq")
    if isinstance(seq, int) and seq < OFFLOADS_FROM:
        place = "unsloth 2026.10.9 models/_utils.py apply_unsloth_gradient_checkpointing"
        reading.default("offload", "none", f"{place}: nothing is moved below {OFFLOADS_FROM} tokens")


def say_packing(keys: Keys, name: str, reading: Reading) -> None:
    """Enter that several samples fill a row."""
    if keys.flag(name):
        reading.say("padding", "packed", keys.where(name))


def stop_at_towers(keys: Keys, name: str, reading: Reading) -> None:
    """Models that see are loaded and adapted by other classes of Unsloth, which were not read."""
    sentence = (
        f"{keys.where(name)}: how Unsloth adapts models that see is not modelled: take a model of text, or "
        "say the job by flags (plan --help)"
    )
    reading.stops.append(Stop(lambda model: model.vision is not None, sentence, by_tool=False))


def loaded_name(name: str, *, four_bits: bool) -> str:
    """The checkpoint that Unsloth loads where ``name`` is asked for.

    Source: unsloth 2026.10.9 models/mapper.py (``FLOAT_TO_INT_MAPPER``, ``INT_TO_FLOAT_MAPPER``) and
    models/loader_utils.py (``get_model_name``, ``BAD_MAPPINGS``).
    ``four_bits``: ``load_in_4bit``.  Without it a packed checkpoint of its own is not loaded either, but the
    one that was packed.
    """
    owner, slash, model = name.partition("/")
    if not slash or "/" in model or owner.lower() not in _OWNERS:
        return name
    plain = _PACKED.sub("", model)
    if not four_bits:
        return f"unsloth/{plain}" if owner.lower() == "unsloth" else name
    own = _PARTLY_PACKED.get(plain.lower())
    return name if own is None else f"unsloth/{own}-unsloth-bnb-4bit"
