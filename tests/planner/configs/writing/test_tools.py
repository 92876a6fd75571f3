"""The way back: what a rule of a tool writes for a value is read as that value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.read import TOOLS
from planner.configs.writing.sharding_keys import Files
from planner.configs.writing.tools import RULES
from planner.configs.writing.translate import edits_for
from planner.configs.yaml_or_json import Document, read_document
from planner.intake.given.fields import REQUEST_FIELDS
from tests.files import written
from tests.planner.configs.writing.made import BASES, read_with

# Values that a lever may set.
VALUES: dict[str, tuple[Any, ...]] = {
    "batch": (1, 4),
    "grad_accum": (8,),
    "seq": (128,),
    "lora_rank": (4,),
    "loss": ("liger", "chunked"),
    "attention": ("flash2", "sdpa", "eager"),
    "optimizer": ("adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"),
    "gradient_checkpointing": (True,),
    "checkpoint_reentrant": (False,),
    "precision": ("bf16-mixed",),
    "method": ("full", "lora", "qlora", "int8"),
    "sharding": ("zero2", "zero3", "fsdp"),
    "offload": ("activations",),
    "padding": ("packed",),
    "load_dtype": ("bf16",),
    "modules_to_save": (("lm_head",),),
}
CASES = [(tool, name, value) for tool in BASES for name, values in VALUES.items() for value in values]
QUANTIZED = {"qlora": "nf4", "int8": "int8"}


@pytest.mark.parametrize(
    ("tool", "name", "value"), CASES, ids=[f"{tool}-{name}-{value}" for tool, name, value in CASES]
)
def test_a_rule_is_the_inverse_of_the_reader(tool: str, name: str, value: Any, tmp_path: Path) -> None:
    """What a rule writes for a value is read as that value,
    and leaves no key that the reader does not know.
    """
    said = read_with(tool, {name: value}, tmp_path)
    if said is None:
        return
    if name == "method":
        assert said["method"] == ("full" if value == "full" else "lora")
        assert said.get("quantization") == QUANTIZED.get(value)
    else:
        assert REQUEST_FIELDS[name].parse(said[name]) == value


def test_each_tool_can_say_what_people_change_first() -> None:
    """The tables are not empty where it matters:
    micro-batch and accumulation of every tool that has rules.
    """
    for rules in RULES.values():
        assert {"batch", "grad_accum"} <= rules.keys()
    for tool in ("llama-factory", "axolotl", "trl", "transformers", "ms-swift"):
        assert {"loss", "gradient_checkpointing", "optimizer"} <= RULES[tool].keys()


REFUSED = [
    ("axolotl", "", {"offload": "activations"}),
    ("axolotl", "", {"sharding": "fsdp", "optimizer": "adamw_8bit"}),
    ("axolotl", "fsdp_version: 2\nfsdp_config: {cpu_ram_efficient_loading: true}\n", {"method": "qlora"}),
    ("axolotl", "fsdp_config: {fsdp_offload_params: true}\n", {"optimizer": "paged_adamw_8bit"}),
    ("llama-factory", "deepspeed: {zero_optimization: {stage: 3}}\n", {"precision": "bf16"}),
    ("llama-factory", "pure_bf16: true\n", {"sharding": "zero3"}),
    ("llama-factory", "quantization_bit: 8\n", {"sharding": "fsdp"}),
    ("trl", "", {"loss": "liger"}),
]


@pytest.mark.parametrize(
    ("tool", "more", "changes"), REFUSED, ids=[f"{case[0]}-{i}" for i, case in enumerate(REFUSED)]
)
def test_what_a_tool_refuses_is_not_offered(
    tool: str, more: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Settings that the tool's own checks refuse together have no keys;
    other changes of the same file have.
    """
    path = written(tmp_path, BASES[tool] + more, "file.yaml")
    files = Files(tool, read_document(path))
    assert edits_for(files, changes) is None
    assert edits_for(files, {"batch": 1}) is not None


def test_a_change_is_not_written_for_a_tool_without_rules(tmp_path: Path) -> None:
    """A tool whose reader is new has none: its file is judged, and what would make it fit stays a flag."""
    assert set(RULES) < set(TOOLS)
    files = Files("torchtitan", Document(tmp_path / "train.toml", {"training": {}}), None, None)
    assert edits_for(files, {"batch": 2}) is None
