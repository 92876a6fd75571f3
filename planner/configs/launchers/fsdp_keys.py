"""FSDP as Transformers and Accelerate write it down, and files that configs refer to.

Source: Transformers 5.23.0 training_args.py ``_process_fsdp_args``; Accelerate 1.15.0 utils/dataclasses.py
``FullyShardedDataParallelPlugin`` and commands/config/cluster.py.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.stock import stock_file
from planner.configs.yaml_or_json import Document, read_document
from planner.errors import InputFileError, show

_HARMLESS = names_in("fsdp.toml", "harmless")
_MIXTURE = re.compile(r"(?:MoE|MoeBlock|MoEBlock)$")
_PART_OF_LAYER = re.compile(r"(?:MLP|Mlp|Experts?|Attention)$")
_OF_TOWER = re.compile(r"Vision|^(?:CLIP|Siglip|Pixtral)")
_MOST_PARTS = 30
_SUFFIXES = (".json", ".yaml", ".yml", ".conf")
DEEPSPEED_FILE = (
    "say where it is: --deepspeed FILE, or one of zero2, zero2_offload, zero3 and zero3_offload, as ms-swift "
    "ships them"
)
ACCELERATE_FILE = "say where it is: --accelerate FILE"
_PINS = "cpu_offload_pin_memory"
_UNMODELLED = texts_in("fsdp.toml", "unmodelled")
# Accelerate's numbers for FSDP1, in the order of its FSDP_SHARDING_STRATEGY.
_STRATEGIES = {
    "1": "full_shard",
    "2": "shard_grad_op",
    "3": "no_shard",
    "4": "hybrid_shard",
    "5": "hybrid_shard_zero2",
}


@dataclass(frozen=True, slots=True)
class Beside:
    """Files given beside a config on the command line, in place of those that it refers to.

    ``look``: whether a launch file is looked for beside the config where none is given.  ``task``: what the
    name of a script says that its arguments are for.  ``script``: its name, where a command runs one;
    ``own``: it is none of a tool that is known; ``words``: what stands behind it, where its text is read.
    ``flags``: fields of the job that are given, too.  ``stack``: the one that the config is read for, where
    its keys fit several.  ``gpu``: the name of the card, where one is given; ``gpus``: how many of it in all.
    ``allocator``: what a command's environment tells PyTorch's allocator.
    """

    deepspeed: Path | None = None
    accelerate: Path | None = None
    look: bool = True
    task: str = ""
    script: str = ""
    own: bool = False
    words: tuple[str, ...] | None = None
    flags: frozenset[str] = frozenset()
    stack: str = ""
    gpu: str = ""
    gpus: int = 0
    allocator: str = ""

    @property
    def given(self) -> bool:
        """Whether one of them is there."""
        return self.deepspeed is not None or self.accelerate is not None


def referred(keys: Keys, name: str, way_out: str, reading: Reading) -> Document:
    """The file that a key names: looked for beside the config, then in the working directory,
    where tools look, then in the folders above the config, from which its job may be launched, and that is
    remarked on.

    One of another machine is that here whose path ends alike; one that comes with a tool and is in neither
    place is known by its folder and name.  Both are remarked on.

    Raises:
        InputFileError: it is in neither place, or cannot be read.
    """
    named = _expanded(keys.text(name) or "")
    if named.suffix not in _SUFFIXES:
        # A config is untrusted: it must not make a message repeat whatever file it names.
        ends = f"which ends in none of {', '.join(_SUFFIXES)}"
        raise InputFileError(keys.path, f"key '{name}' names {show(str(named))}, {ends}; {way_out}")
    if (path := found_file(named, keys.path)) is not None:
        if path not in (keys.path.parent / named, named):
            reading.remark(keys.where(name), f"found as {show(str(path))}, above this file")
        return remark_on_twice(read_document(path), reading)
    if (path := file_ending_alike(named, keys.path)) is not None:
        reading.remark(keys.where(name), f"{show(str(named))} is not here: taken as {show(str(path))}")
        return remark_on_twice(read_document(path), reading)
    if (stock := stock_file(named, str(reading.value("stack")).partition("@")[0])) is not None:
        reading.remark(keys.where(name), f"{show(str(named))} is not here: taken as {stock[1]}")
        return stock[0]
    above = ", nor above it," if len(named.parts) > 1 else ""
    raise InputFileError(
        keys.path,
        f"key '{name}' names {show(str(named))}, which is neither beside this file{above} nor in the working "
        f"directory; {way_out}",
    )


def found_file(named: Path, config: Path) -> Path | None:
    """The file ``named`` by ``config``: beside it, in the working directory, or in a folder above it.

    A name without a folder is not looked for above: another job may have a file of that name there.
    """
    folder = config.parent
    above = folder.parents if len(named.parts) > 1 else ()
    for place in (folder, Path(), *above):
        if os.path.isfile(place / named):  # noqa: PTH113 - Path.is_file fails at names that are too long
            return place / named
    return None


def file_ending_alike(named: Path, config: Path) -> Path | None:
    """The file here whose path ends as that of a file of another machine, by folder and name at least."""
    parts = named.parts[1:]
    if not named.is_absolute() or len(parts) > _MOST_PARTS:
        return None
    ends = (Path(*parts[start:]) for start in range(len(parts) - 1))
    return next(filter(None, (found_file(end, config) for end in ends)), None)


def _expanded(name: str) -> Path:
    """A path with ``~`` for the home folder; as it stands where there is no such user."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def remark_on_twice(document: Document, reading: Reading) -> Document:
    """The document, after its keys that are given twice were remarked on:
    the last value is the one that counts.
    """
    for key, line in document.twice:
        reading.remark(f"{document.path}:{line}", f"key '{show(key)}' is given twice: the last value counts")
    return document


@dataclass(slots=True)
class FsdpKeys:
    """What is given about FSDP: the strategy with its place, whether FSDP itself checkpoints layers,
    and whether FSDP1 gathers ahead in backward, which neither Accelerate (1.15.0 commands/launch.py and
    utils/dataclasses.py) nor TrainingArguments (transformers 4.52.4 to 5.23.0) ask for by themselves.
    """

    version: int
    strategy: str = "full_shard"
    where: str = ""
    checkpoints: bool = False
    prefetches: bool = False


def read_fsdp(keys: Keys, reading: Reading, found: FsdpKeys) -> None:
    """Enter a table of FSDP's settings, whose keys may begin with ``fsdp_``;
    ``found`` holds what is known before it.
    """
    prefix = _Prefixed(keys)
    version = keys.count(prefix("version"))
    found.version = version or found.version
    for name in ("sharding_strategy", "reshard_after_forward"):
        value = keys.get(prefix(name))
        if value is not None:
            found.strategy, found.where = _strategy(value), keys.where(prefix(name))
    offloads = prefix("cpu_offload") if keys.has(prefix("cpu_offload")) else prefix("offload_params")
    if keys.flag(offloads):
        reading.say("offload", "optimizer+params", keys.where(offloads), "FSDP offloads both")
    # axolotl 0.19.0 utils/trainer.py: a key of its own, false with offload only.
    if keys.flag(_PINS) is False:
        raise keys.not_modelled(_PINS, "offload of FSDP to RAM that is not pinned is not modelled")
    if keys.flag(prefix("activation_checkpointing")):
        found.checkpoints = True
        # accelerate 1.15.0 accelerator.py prepare_model and utils/fsdp_utils.py fsdp2_apply_ac, whatever the
        # tool's own checkpoints are.
        for name, value in (("gradient_checkpointing", True), ("checkpoint_reentrant", False)):
            reading.said.pop(name, None)
            reading.say(name, value, keys.where(prefix("activation_checkpointing")))
    keys.refuse_switched_on({prefix(name): why for name, why in _UNMODELLED.items()})
    _read_units(keys, prefix, reading)
    for name in ("backward_prefetch", "backward_prefetch_policy"):
        policy = keys.get(prefix(name))
        if policy is not None:
            found.prefetches = str(policy).upper() != "NO_PREFETCH"
    if found.version == 1:
        _read_flat_parameters(keys, prefix, reading)
    keys.skip([prefix(name) for name in _HARMLESS])
    say_fsdp(keys, reading, found)


def _read_flat_parameters(keys: Keys, prefix: _Prefixed, reading: Reading) -> None:
    """What the optimizer of FSDP1 has, and how far weights are gathered ahead.

    Source: accelerate 1.15.0 commands/launch.py (``--fsdp_use_orig_params`` is true), transformers 5.23.0
    training_args.py _process_fsdp_args; torch 2.13 distributed/fsdp/_runtime_utils.py _unshard.
    """
    name = prefix("use_orig_params")
    if keys.flag(name) is False:
        reading.switch("fsdp1_flat", True, keys.where(name))
    name = prefix("limit_all_gathers")
    if keys.flag(name) is False:
        raise keys.not_modelled(name, "weights that FSDP gathers ahead without a limit are not modelled")


def _read_units(keys: Keys, prefix: _Prefixed, reading: Reading) -> None:
    """Units of FSDP: the layers, or the mixture of experts of each of them.

    Source: accelerate 1.15.0 utils/dataclasses.py FullyShardedDataParallelPlugin (auto_wrap_policy); torch
    2.13 distributed/fsdp/wrap.py.
    """
    policy = prefix("auto_wrap_policy")
    if str(keys.get(policy) or "").upper() in ("NO_WRAP", "SIZE_BASED_WRAP"):
        raise keys.not_modelled(
            policy, f"FSDP with {show(keys.get(policy))} is not modelled; TRANSFORMER_BASED_WRAP is"
        )
    name = prefix("transformer_layer_cls_to_wrap")
    classes = keys.names(name)
    mixtures = [each for each in classes if _MIXTURE.search(each)]
    parts = [each for each in classes if _PART_OF_LAYER.search(each)]
    if parts or (mixtures and len(classes) > 1):
        first = (parts or mixtures)[0]
        raise keys.not_modelled(
            name,
            f"units of FSDP other than whole layers, or the mixture of experts of each, {show(first)}, are "
            "not modelled",
        )
    if mixtures:
        reading.switch("fsdp_units", "feed_forward", keys.where(name))
    elif classes:
        reading.switch("fsdp_layer_class", "+".join(classes), keys.where(name))
        towers = any(_OF_TOWER.search(each) for each in classes)
        reading.switch("tower_units", "layers" if towers else "in_root", keys.where(name))


def say_fsdp(keys: Keys, reading: Reading, found: FsdpKeys) -> None:
    """Enter the kind of FSDP.

    Raises:
        NotModelledError: a strategy that no formula covers.
    """
    kinds = {
        (1, "full_shard"): "fsdp1",
        (2, "full_shard"): "fsdp",
        (1, "shard_grad_op"): "fsdp1-grad-op",
        (2, "shard_grad_op"): "fsdp-grad-op",
        (1, "no_shard"): "ddp",
        (1, "hybrid_shard"): "hsdp1",
    }
    kind = kinds.get((found.version, found.strategy))
    if kind is None:
        place = found.where.removeprefix(f"{keys.path}:") or "fsdp"
        raise keys.not_modelled(
            place, f"FSDP{found.version} with {show(found.strategy)} is not modelled; full_shard is"
        )
    reading.say("sharding", kind, found.where or str(keys.path), f"FSDP{found.version}, {found.strategy}")
    if found.version == 1 and not found.prefetches:
        reading.switch("fsdp1_prefetches", False, found.where or str(keys.path))


def _strategy(value: object) -> str:
    """``full_shard`` and so on, from a name, a number of FSDP1 or the truth value of FSDP2."""
    text = str(value).strip().lower()
    if text in ("true", "false"):
        return "full_shard" if text == "true" else "shard_grad_op"
    return _STRATEGIES.get(text, text)


class _Prefixed:
    """Name of a key as this table writes it: with ``fsdp_`` where that is there."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def __call__(self, name: str) -> str:
        return f"fsdp_{name}" if self._keys.holds(f"fsdp_{name}") else name
