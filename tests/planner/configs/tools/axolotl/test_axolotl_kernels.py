"""Axolotl's plugin of kernels for experts: what is read, and what it stops at."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.read import read_config
from planner.errors import NotModelledError, UsageError
from planner.intake.given.config_file import read_config_file, with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from tests.files import written as write

BASE = (
    "base_model: Qwen/Qwen3-30B-A3B\nadapter: lora\nlora_r: 16\nlora_dropout: 0\n"
    "lora_target_modules: [q_proj]\n"
    "plugins: [axolotl.integrations.kernels.KernelsPlugin]\n"
)


def written(folder: Path, text: str) -> Path:
    """A file with this text behind the plugin."""
    return write(folder, BASE + text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("use_scattermoe: true\n", "scattermoe"),
        ("expert_backend: ScatterMoE\nexperts_implementation: grouped_mm\n", "scattermoe"),
        ("experts_implementation: grouped_mm\n", "transformers"),
    ],
)
def test_who_runs_the_experts(tmp_path: Path, text: str, code: str) -> None:
    """ScatterMoE by either key, whatever is said of the implementation."""
    request = with_flags(read_config_file(written(tmp_path, text)), from_flags({"gpu": "h100-sxm"}))
    assert resolve(request).stack.mixture_code == code


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("use_sonicmoe: true\n", "SonicMoE's kernels are not modelled"),
        ("", "lets experts run one after the other"),
        ("expert_backend: eager\n", "lets experts run one after the other"),
        ("use_scattermoe: true\nmoe_bnb_fast: false\n", "expanded in pieces"),
        ("use_scattermoe: true\nuse_dsv4_kernels: true\n", "DeepSeek V4"),
    ],
)
def test_other_kernels_are_not_modelled(tmp_path: Path, text: str, refused: str) -> None:
    """SonicMoE makes copies of the weights; without a backend the plugin's default is a loop."""
    with pytest.raises(NotModelledError, match=refused):
        read_config(written(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        "use_scattermoe: true\nuse_sonicmoe: true\n",
        "use_scattermoe: true\nexpert_backend: sonicmoe\n",
        "expert_backend: megablocks\n",
    ],
)
def test_what_axolotl_refuses_by_itself(tmp_path: Path, text: str) -> None:
    """Two backends, or one that it does not know."""
    with pytest.raises(UsageError, match="refused-by-its-tool"):
        read_config(written(tmp_path, text))
