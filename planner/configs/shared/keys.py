"""The keys of one table, read one by one: what nobody asked for is left over and gets reported."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from planner.configs.yaml_or_json import Document
from planner.domain.recipes.recipe import TARGET_PARAMETER, TARGET_PATTERN
from planner.errors import (
    REFUSED_BY_TOOL,
    InputFileError,
    NotModelledError,
    NoTrainingError,
    UnreadKeyError,
    UsageError,
    show,
)

# What a key may hold that switches something off.
_PLAIN = (bool, int, float, str, type(None))
_OFF = (None, False, 0, "", "none", "no", "false")
# Zero as a command line may write it, whose numbers with a point stay text.
_ZERO = re.compile(r"[+-]?(?:0{1,20}\.?0{0,20}|\.0{1,20})(?:[eE][+-]?\d{1,5})?")
_NUMBER = re.compile(r"[+-]?(?:\d{1,20}\.?\d{0,20}|\.\d{1,20})(?:[eE][+-]?\d{1,2})?")
_BOOLEANS = {"true": True, "false": False, "yes": True, "no": False}
# Words of keys that may change memory: what is trained and in which dtype, where it lies,
# what the step keeps, how long it is.
_MATTERS = re.compile(
    "lora|peft|adapter|quant|[48]_?bit|parallel|offload|freez|frozen|shard|zero|dtype|precision|fp8|fp16|bf16"
    "|expert|moe|attention|attn|flash|liger|kernel|gradient_checkpoint|recompute|optim"
    "|ref_model|reference_model|(?:ref|reference|teacher|reward|guide|judge)_name_or_path"
    "|spectrum|select(?:ive|ed)|galore|trainable|unsloth|batch_size|seq_len"
    "|sequence_len|seq_length|sequence_length|max_len|cutoff_len|block_size|packed|packing"
    "|train(?:ing)?_(?:mode|type)|tuner"
    "|num_(?:visual|image|video|action|new|added|extra|special|virtual|latent|query)_tokens"
    "|vocab_size|(?:resiz|expand|extend)[a-z]*_(?:vocab|token|embed)"
)
# A switch of a fork or script turns on what nobody read (``use_fisher``), unless it is beside the step.
_SWITCH = re.compile(
    "use_(?!wandb|swanlab|tensorboard|mlflow|hub|hf_|auth|token|fast|cache|template|prompt|chat|gpu|cuda)"
)
# Names that turn something off are no slips of those that turn it on.
_NEGATED = re.compile(r"(?:^|_)(?:no|not|disable|skip|without)_")
# Words of values that name a way of training, whatever their key is called.
_WAYS = re.compile(r"(?:q?lora|dora|oft|[48]-?bit|int[48]|nf4|fp4|adapters?|freeze|frozen)", re.IGNORECASE)
# Names at least so alike may be slips of each other.
_LIKE = 0.8
# What a template leaves to be filled in: ``{{ name }}``, ``${name}``, ``$name``, ``<name>``.
_PLACEHOLDER = re.compile(
    r"\{\{[^{}]{0,80}\}\}|\$\{[^${}]{0,80}\}|\$[A-Za-z_0-9@*][A-Za-z0-9_]{0,80}|<[A-Z][A-Z0-9_]{0,80}>"
)

BY_FLAG = {
    **dict.fromkeys(("model_name_or_path", "base_model", "model"), "model"),
    **dict.fromkeys(("per_device_train_batch_size", "micro_batch_size"), "batch"),
    **dict.fromkeys(
        ("cutoff_len", "sequence_len", "max_length", "max_seq_length", "model_max_length"), "seq"
    ),
    **dict.fromkeys(("num_train_epochs", "num_epochs"), "epochs"),
    **dict.fromkeys(("lora_rank", "lora_r"), "lora_rank"),
    "gradient_accumulation_steps": "grad_accum",
    "lora_target_modules": "lora_targets",
}
"""Keys that a file may leave to be filled in where a flag says the same field of the job."""


def is_left_open(value: object) -> bool:
    """Whether a value has a placeholder that nobody filled in, or is an argument that an empty variable of a
    script left without one.
    """
    texts = value if isinstance(value, list) else [value]
    return value is True or any(isinstance(each, str) and _PLACEHOLDER.search(each) for each in texts)


class Keys:
    """A table of a file with the names of its keys as people find them there (``zero_optimization.stage``).

    A key that is ``null`` counts as not given, as the tools read it with few exceptions.
    """

    def __init__(self, path: Path, table: Mapping[str, Any], prefix: str = "") -> None:
        self.path, self._table, self._prefix = path, table, prefix
        self._read: set[str] = set()
        self._parts: dict[str, Keys] = {}
        self._written: dict[str, str] = {}

    @classmethod
    def of(cls, document: Document) -> Keys:
        """All keys of a file."""
        return cls(document.path, document.table)

    def has(self, name: str) -> bool:
        """Whether the key is there and not ``null``."""
        return self._table.get(name) is not None

    def holds(self, name: str) -> bool:
        """Whether the key is there, be it ``null``."""
        return name in self._table

    def has_only(self, names: Collection[str]) -> bool:
        """Whether every key is one of ``names``."""
        return all(name in names for name in self._table)

    def get(self, name: str) -> Any:
        """The value of a key, ``None`` where it is not given; it counts as read.

        Tokens that are added to a vocabulary look like placeholders (``<IMG>``).

        Raises:
            InputFileError: a placeholder that nobody filled in.
        """
        self._read.add(name)
        value = self._table.get(name)
        new_tokens = name.endswith("_tokens")
        if isinstance(value, str) and not new_tokens:
            self._refuse_open(name, value)
        return value

    def _refuse_open(self, name: str, text: str) -> None:
        """Raises: InputFileError where a text has a placeholder that nobody filled in."""
        if (found := _PLACEHOLDER.search(text)) is not None:
            flag = f", or say --{BY_FLAG[name].replace('_', '-')}" if name in BY_FLAG else ""
            raise InputFileError(
                self.path,
                f"key '{self._prefix}{name}' holds the placeholder {show(found[0])}: fill it in first{flag}",
            )

    def as_written(self, name: str) -> Any:
        """The value of a key, which may be a placeholder that its tool fills in; it counts as read."""
        self._read.add(name)
        return self._table.get(name)

    def where(self, name: str) -> str:
        """Place of a key: ``file:key``."""
        return f"{self.path}:{self._prefix}{self._written.get(name, name)}"

    def rename(self, names: Mapping[str, str]) -> None:
        """Let keys be asked for by other names (as written -> asked for); places keep the written ones."""
        self._written = {
            asked: written
            for written, asked in names.items()
            if written in self._table and asked not in self._table
        }
        asked = {written: name for name, written in self._written.items()}
        self._table = {asked.get(name, name): value for name, value in self._table.items()}

    def flag(self, name: str) -> bool | None:
        """A key that must be true or false, ``None`` where it is not given; 0, 1, yes and no are taken as
        well, as command lines have them (transformers 5.23.0 hf_argparser.py string_to_bool).

        Raises:
            InputFileError: something else.
        """
        value = self.get(name)
        if isinstance(value, str) and value.strip().lower() in _BOOLEANS:
            return _BOOLEANS[value.strip().lower()]
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and value in (0, 1):
            return bool(value)
        raise self.wrong(name, "true or false", value)

    def is_on(self, name: str) -> bool:
        """Whether a key holds what switches something on: no zero, however it is written, and no false."""
        return not is_off(self.get(name))

    def text(self, name: str) -> str | None:
        """A key that must be text.

        Raises:
            InputFileError: something else.
        """
        value = self.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(name, "text", value)

    def count(self, name: str) -> int | None:
        """A key that must be a whole number above zero.

        Raises:
            InputFileError: something else.
        """
        value = self.get(name)
        number = (
            int(value) if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20 else value
        )
        if number is None or (isinstance(number, int) and not isinstance(number, bool) and number > 0):
            return number
        raise self.wrong(name, "a whole number above zero", value)

    def number(self, name: str) -> float | None:
        """A key that must be a number; one with a point may be text, as on a command line.

        Raises:
            InputFileError: something else.
        """
        value = self.get(name)
        if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
            return float(value)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        raise self.wrong(name, "a number", value)

    def names(self, name: str) -> tuple[str, ...]:
        """A key that must be a list of names, or one text with commas; empty where it is not given.

        Raises:
            InputFileError: something else.
        """
        value = self.get(name)
        parts = [] if value is None else value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise self.wrong(name, "a list of names", value)
        for part in parts:
            self._refuse_open(name, part)
        return tuple(part.strip() for part in parts if part.strip())

    def targets(self, name: str) -> tuple[str, ...]:
        """LoRA targets: a list of names, or one text,
        which PEFT takes for an expression unless it is ``all-linear``.

        Source: peft 0.21 tuners/tuners_utils.py check_target_module_exists.

        Raises:
            InputFileError: something else.
        """
        value = self.get(name)
        if isinstance(value, str) and value not in ("", "all-linear"):
            return (TARGET_PATTERN + value,)
        return self.names(name)

    def parameter_targets(self, name: str) -> tuple[str, ...]:
        """Parameters of every layer that adapters are put on, under the key ``name``.

        Raises:
            InputFileError: no list of names.
            NotModelledError: parameters of single layers.
        """
        names = self.names(name)
        if single := next((each for each in names if re.search(r"(?:^|\.)[0-9]+\.", each)), None):
            raise self.not_modelled(
                name, f"'{show(single)}' is of one layer: adapters on some layers only are not modelled"
            )
        return tuple(TARGET_PARAMETER + each for each in names)

    def part(self, name: str) -> Keys | None:
        """The table below a key, the same each time, ``None`` where there is none; what is not read of it is
        left over as well.

        Raises:
            InputFileError: something else than a table.
        """
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise self.wrong(name, "a table", value)
        return self._parts.setdefault(name, Keys(self.path, value, f"{self._prefix}{name}."))

    def section(self, name: str) -> Keys:
        """The table below a key, empty where there is none; raises as :meth:`part`."""
        return self.part(name) or Keys(self.path, {}, f"{self._prefix}{name}.")

    def wrong(self, name: str, wanted: str, value: object) -> InputFileError:
        """The error about a value that cannot be used."""
        return InputFileError(
            self.path, f"key '{self._prefix}{name}' must be {wanted}, but it is {show(value)}"
        )

    def not_modelled(self, name: str, why: str) -> NotModelledError:
        """The error about a key whose effect no formula covers."""
        return NotModelledError(f"{self.where(name)}: {why}")

    def trains_nothing(self, name: str, why: str) -> NotModelledError:
        """The error about a key that says a job of other work."""
        return NoTrainingError(f"{self.where(name)}: {why}; training is what is predicted")

    def stops(self, name: str, why: str) -> UsageError:
        """The error about a key at which the tool itself stops."""
        return UsageError(f"{self.where(name)}: {why} [{REFUSED_BY_TOOL}]")

    def refuse_switched_on(self, reasons: Mapping[str, str]) -> None:
        """Read keys that change memory or time in a way that no formula covers; off, they say nothing.

        Raises:
            NotModelledError: one of them is on; says why it is not modelled.
        """
        for name, why in reasons.items():
            if self.is_on(name):
                raise self.not_modelled(name, why)

    def refuse_above_one(self, reasons: Mapping[str, str]) -> None:
        """Read degrees that are modelled at 1 only.

        Raises:
            InputFileError: not a whole number.
            NotModelledError: one of them is above 1.
        """
        for name, what in reasons.items():
            degree = self.get(name)
            if degree is None:
                continue
            if isinstance(degree, bool) or not isinstance(degree, int):
                raise self.wrong(name, "a whole number", degree)
            if degree > 1:
                raise self.not_modelled(name, f"{what} of {degree} is not modelled; only 1 is")

    def skip(self, names: Iterable[str]) -> None:
        """Count keys as read that change neither memory nor the time of a step."""
        self._read.update(names)

    def skip_rest(self) -> None:
        """Count all keys of this table as read."""
        self.skip(self._table)

    def refuse_rest(self, why: str) -> None:
        """Raises: NotModelledError where nobody read a key of this table."""
        for name in self.left_over_here():
            raise self.not_modelled(name, why)

    def refuse_unknown(self) -> None:
        """:meth:`refuse_unknown_here`, in the tables below as well."""
        self.refuse_unknown_here()
        for part in self._parts.values():
            part.refuse_unknown()

    def refuse_unknown_here(self) -> None:
        """Refuse keys that nobody read and whose name or value says that they may change memory.

        The one rule about unknown keys: others are reported and ignored.  A key of this kind that changes
        nothing stands in ``harmless``, with the place in its tool's source.

        Raises:
            NotModelledError: names the first of them, and the known key that its name is nearest to.
        """
        for name in self.left_over_here():
            value = self._table[name]
            if isinstance(value, str) and _WAYS.fullmatch(value.strip()):
                raise self._unread(name, f"value ('{value.strip()}') may change what is trained")
            found = _MATTERS.search(name.lower())
            if found is None and not is_off(value):
                found = _SWITCH.match(name.lower())
            if found is None or value is None:
                continue
            near = self._nearest(name)
            advice = f"; is {near} meant?" if near else "; take it out if it changes nothing"
            raise self._unread(name, f"name ('{found[0]}') says that it may change memory{advice}")

    def _unread(self, name: str, why: str) -> UnreadKeyError:
        return UnreadKeyError(f"{self.where(show(name))}: unknown key, whose {why}")

    def _nearest(self, name: str) -> str:
        """The known key of which ``name`` may be a slip, "" where there is none."""
        known = [each for each in self._read if bool(_NEGATED.search(each)) == bool(_NEGATED.search(name))]
        return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=_LIKE)), "")

    def slips(self) -> tuple[tuple[str, str], ...]:
        """Places of keys of this very table that nobody read, and of which known key each may be a slip."""
        near = ((name, self._nearest(name)) for name in self.left_over_here())
        return tuple(
            (self.where(show(name)), known) for name, known in near if known not in ("", *self._table)
        )

    def refuse_foreign(self) -> None:
        """A table of which nobody read a key.

        Raises:
            InputFileError: it has keys, and none of them is known.
        """
        if self._table and len(self.left_over_here()) == len(self._table):
            raise InputFileError(
                self.path, "none of its keys is known: it is a file of another program, or for another --tool"
            )

    def left_over_here(self) -> tuple[str, ...]:
        """Keys of this very table that nobody read."""
        return tuple(name for name in self._table if name not in self._read)

    def left_over(self) -> tuple[str, ...]:
        """Keys that nobody read, with those of the tables below, in the order of the file."""
        own = tuple(f"{self._prefix}{show(name)}" for name in self.left_over_here())
        return (*own, *(name for part in self._parts.values() for name in part.left_over()))


def is_off(value: object) -> bool:
    """Whether a value switches its key off: also a table whose ``enabled`` is false,
    or ``auto`` where DeepSpeed reads it.
    """
    if isinstance(value, dict):
        return not value or ("enabled" in value and (value["enabled"] == "auto" or is_off(value["enabled"])))
    if isinstance(value, str):
        word = value.strip().lower()
        return word in _OFF or _ZERO.fullmatch(word) is not None
    return value in _OFF if isinstance(value, _PLAIN) else not value
