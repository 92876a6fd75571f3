"""What ``tune run RECIPE --config FILE KEY=VALUE ...`` makes of the file.

Source: torchtune 0.6.1 _cli/run.py ``_run_cmd``, config/_utils.py ``_merge_yaml_and_cli_args``; the names:
_recipe_registry.py of 0.1.1 to 0.6.1 and of bd2a0fc7c (2026-04).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from planner.errors import REFUSED_BY_TOOL, NotModelledError, UsageError, show
from planner.files.structured import yaml_value

COMPONENT = "_component_"
"""Key of a nested table that torchtune's config parser instantiates (config/_instantiate.py)."""
TRAINS_NOTHING = frozenset(
    ("generate", "dev/generate_v2", "dev/generate_v2_distributed", "eleuther_eval", "quantize")
)
_SINGLE = "_single_device"
_DEEPEST = 32
_RECIPES = (
    *("full_finetune_single_device", "full_finetune_distributed"),
    *("lora_finetune_single_device", "lora_finetune_distributed"),
    *("lora_dpo_single_device", "lora_dpo_distributed", "full_dpo_distributed"),
    *("qat_single_device", "qat_distributed", "qat_lora_finetune_distributed"),
)


def refuse_recipe(path: Path, recipe: str, *, launched: bool) -> None:
    """Stop at a recipe whose training is not read; ``launched``: options of torchrun stand before it.

    Raises:
        NotModelledError: the recipe is one's own, or of another kind.
        UsageError: several processes for a recipe of one.
    """
    if recipe not in _RECIPES:
        what = "this recipe is not modelled; torchtune's own for fine-tuning, QAT and DPO are"
        raise NotModelledError(f"{path}: {show(recipe)}: {what}")
    if launched and recipe.endswith(_SINGLE):
        raise UsageError(
            f"{path}: tune starts no {recipe} behind options of torchrun: leave them out, or name the "
            f"distributed recipe [{REFUSED_BY_TOOL}]"
        )


def config_and_rest(path: Path, words: Sequence[str]) -> tuple[str, list[str]]:
    """The file behind ``--config``, and the words around it.

    Raises:
        UsageError: there is none, or it is the name of one that comes with torchtune.
    """
    place = words.index("--config") if "--config" in words[:-1] else -1
    if place < 0:
        raise UsageError(f"{path}: tune run asks for --config FILE [{REFUSED_BY_TOOL}]")
    name = words[place + 1]
    if not name.endswith((".yaml", ".yml")):
        raise UsageError(
            f"{path}: {show(name)} is a file of torchtune's own: write it here with tune cp {show(name)} "
            "mine.yaml, and say --config mine.yaml"
        )
    return name, [*words[:place], *words[place + 2 :]]


def overridden(path: Path, table: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """``table`` with ``KEY=VALUE``, where a key may have dots, and without ``~KEY``.

    Raises:
        UsageError: a word that torchtune stops at.
    """
    made = deepcopy(dict(table))
    for word in words:
        name, mark, value = word.removeprefix("~").partition("=")
        if word.startswith("~"):
            _remove(path, made, name)
            continue
        if not mark or "=" in value or not name or name.count(".") > _DEEPEST:
            raise UsageError(
                f"{path}: '{show(word)}' is no argument of a recipe: they are KEY=VALUE [{REFUSED_BY_TOOL}]"
            )
        inside = made.get(name)
        if isinstance(inside, dict) and COMPONENT in inside:
            name += f".{COMPONENT}"
        _put(made, name.split("."), None if value == "None" else yaml_value(path, value)[0])
    return made


def _put(table: dict[str, Any], names: Sequence[str], value: Any) -> None:
    for name in names[:-1]:
        if not isinstance(table.get(name), dict):
            table[name] = {}
        table = table[name]
    table[names[-1]] = value


def _remove(path: Path, table: dict[str, Any], name: str) -> None:
    *outer, last = name.split(".")
    inside: Any = table
    for part in outer:
        inside = inside.get(part) if isinstance(inside, dict) else None
    if not isinstance(inside, dict) or last not in inside:
        raise UsageError(f"{path}: '~{show(name)}' names no key of the file [{REFUSED_BY_TOOL}]")
    del inside[last]
