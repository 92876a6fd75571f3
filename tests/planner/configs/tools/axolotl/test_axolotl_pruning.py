"""Axolotl's plugin for pruned weights: recipes of stages, which do nothing, and those that are not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import NotModelledError
from planner.intake.given.config_file import ConfigFile
from tests.files import read as read_file

BASE = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\noptimizer: adamw_torch\n"
PLUGIN = "plugins: [axolotl.integrations.llm_compressor.LLMCompressorPlugin]\n"
STAGES = "llmcompressor: {recipe: {stage: {modifiers_of_it: {Prune: {start: 0}}}}, save_compressed: true}\n"


def read(folder: Path, text: str) -> ConfigFile:
    """What a file with this text says."""
    return read_file(folder, BASE + text)


def test_stages_prune_nothing(tmp_path: Path) -> None:
    """Recipe has no key for them; beside the dry run on eight cards nothing is missing (Llama 3.1 8B)."""
    config = read(tmp_path, PLUGIN + STAGES)
    assert config.request == read(tmp_path, "").request
    (remark,) = (each for each in config.remarks if "llmcompressor" in each.origin)
    assert "prunes nothing" in remark.text


@pytest.mark.parametrize(
    "text",
    [
        PLUGIN,
        PLUGIN + "llmcompressor: {recipe: sparse.yaml}\n",
        PLUGIN + "llmcompressor: {recipe: {modifiers: [{start: 0}]}}\n",
        PLUGIN + STAGES + "xformers_attention:\n",
    ],
)
def test_other_recipes_and_versions_are_refused(tmp_path: Path, text: str) -> None:
    """None, one of another file, a list of modifiers, and Axolotl with llmcompressor 0.5."""
    with pytest.raises(NotModelledError, match="plugins: "):
        read(tmp_path, text)
