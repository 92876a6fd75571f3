"""A change of a job -> the keys of its files that ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.configs.launchers.zero import AUTO
from planner.configs.writing.edits import REMOVED, Edit, Settings, applied
from planner.configs.writing.refusals import refusals
from planner.configs.writing.sharding_keys import Files, deepspeed_place, engine_edits
from planner.configs.writing.tools import RULES
from planner.configs.yaml_or_json import Document
from planner.words import words

OWN_TOOL = "plan"
# What a file of a trainer does not say: the machine is where it is started.
_OF_MACHINE = frozenset(
    words(
        """
        gpu gpus gpu_memory nodes host host_memory link link_gb_per_s pcie_lanes pcie_generation power_limit_w
        stack price
        """
    )
)
_IN_DEEPSPEED = {"batch": "train_micro_batch_size_per_gpu", "grad_accum": "gradient_accumulation_steps"}


def edits_for(files: Files, changes: Mapping[str, Any]) -> tuple[Edit, ...] | None:
    """The keys that set our fields to ``changes`` (``None``: no longer said);
    ``None`` where the tool has no key for one of them.

    What is set so must be read again to see what it means: a rule knows its own key only,
    not what else the file says.
    """
    if files.tool == OWN_TOOL:
        return _own_toml(files, changes)
    if changes.keys() & _OF_MACHINE:
        return None
    edits: list[Edit] = []
    sharded = {name: changes[name] for name in ("sharding", "offload") if name in changes}
    rules = RULES.get(files.tool, {})
    for name, value in changes.items():
        if name in sharded and not (name == "offload" and value == "activations"):
            continue
        settings = rules[name](files.config.table, value) if name in rules else None
        if settings is None:
            return None
        sharded.pop(name, None)
        edits += _changed(files, settings)
    if sharded:
        engine = engine_edits(_after(files, edits), sharded.get("sharding"), sharded.get("offload"))
        if engine is None:
            return None
        edits += engine
    edits += _agreeing(files, changes)
    return None if refusals(_after(files, edits)) - refusals(files) else tuple(edits)


def _after(files: Files, edits: Sequence[Edit]) -> Files:
    """The files as they are with the edits."""

    def changed(document: Document | None) -> Document | None:
        own = [edit for edit in edits if document is not None and edit.file == document.path]
        return (
            replace(document, table=applied(document.table, own))
            if document is not None and own
            else document
        )

    return Files(
        files.tool, changed(files.config) or files.config, changed(files.deepspeed), changed(files.accelerate)
    )


def _changed(files: Files, settings: Settings) -> list[Edit]:
    """Settings as edits of the config, without those that it has already."""
    table = files.config.table
    edits = [Edit(files.config.path, place, value) for place, value in settings.items()]
    return [
        edit
        for edit in edits
        if not (len(edit.place) == 1 and table.get(edit.place[0], REMOVED) == edit.value)
    ]


def _agreeing(files: Files, changes: Mapping[str, Any]) -> list[Edit]:
    """Sizes that a DeepSpeed configuration repeats as numbers must be the trainer's own."""
    place = deepspeed_place(files)
    if place is None or files.tool == "deepspeed":
        return []
    return [
        place.edit(key, value=changes[name])
        for name, key in _IN_DEEPSPEED.items()
        if name in changes and place.table.get(key) not in (None, AUTO)
    ]


def _own_toml(files: Files, changes: Mapping[str, Any]) -> tuple[Edit, ...]:
    """Our own file has every field as a key."""
    edits = []
    for name, value in changes.items():
        spelled = next((key for key in files.config.table if key.replace("-", "_") == name), name)
        if value is not None or spelled in files.config.table:
            plain = list(value) if isinstance(value, tuple) else value
            edits.append(Edit(files.config.path, (spelled,), REMOVED if value is None else plain))
    return tuple(edits)
