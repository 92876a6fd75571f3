"""The modules that PEFT adapts where nobody names any."""

from __future__ import annotations

from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as OF_PEFT

from planner.catalog.architecture_tables import default_targets
from planner.catalog.location import data_dir
from planner.files.structured import read_toml


def test_the_table_is_that_of_peft() -> None:
    """Every architecture has the names of PEFT's own table."""
    ours = read_toml(data_dir() / "peft_targets.toml")["targets"]
    assert {name: OF_PEFT[name] for name in ours} == ours
    assert default_targets("qwen3_moe") == ()
