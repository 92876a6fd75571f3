"""Axolotl's ``rl: ebft``: which mode is read, what it makes of GRPO, and what Axolotl refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.domain.scenario import Scenario
from planner.errors import NotModelledError, PlannerError, UsageError
from tests.files import filled, read

BASE = "base_model: Qwen/Qwen2.5-0.5B\nadapter: lora\nlora_target_linear: true\nrl: ebft\n"
PAIRED = "micro_batch_size: 4\ntrl: {num_generations: 4, max_completion_length: 64}\n"
ON_A_SERVER = PAIRED.replace("64}", "64, use_vllm: true}")


def scenario_of(folder: Path, text: str, **flags: Any) -> Scenario:
    """The job of a file on one card."""
    return filled(read(folder, BASE + text), {"gpu": "a100-80-sxm", **flags})


@pytest.mark.parametrize(
    ("section", "layers"),
    [("{mode: structured}", 3), ("{embed_method: concat, feature_layers: [0.5, 0.75]}", 2)],
)
def test_structured_is_grpo_scored_by_layers(tmp_path: Path, section: str, layers: int) -> None:
    """EBFTConfig: three layers, structured."""
    found = scenario_of(tmp_path, f"ebft: {section}\n{PAIRED}", seq=256)
    assert found.recipe.task == "grpo"
    assert found.stack.feature_layers == layers


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", UsageError, "asks for a section ebft"),
        (
            "ebft: {mode: strided}\ntorch_compile: true\ngradient_checkpointing: true\n",
            UsageError,
            "torch_compile: Axolotl refuses",
        ),
        ("ebft: {mode: strided}\ntorch_compile: true\n", NotModelledError, "strided completions"),
        (
            f"ebft: {{mode: structured}}\n{PAIRED.replace('64}', '64, generation_kwargs: {seed: 1}}')}",
            NotModelledError,
            "trl.generation_kwargs: arguments of generation",
        ),
    ],
)
def test_what_axolotl_or_the_reader_refuses(
    tmp_path: Path, text: str, error: type[PlannerError], words: str
) -> None:
    """EBFTValidationMixin; short completions at many places of a document."""
    with pytest.raises(error, match=words):
        scenario_of(tmp_path, text, seq=256)


def test_a_server_of_the_same_file_says_how_long_samples_are(tmp_path: Path) -> None:
    """check_vllm_mode_set enters the server; its max_model_len holds prompt and completion."""
    text = f"ebft: {{mode: structured}}\n{ON_A_SERVER}vllm: {{max_model_len: 512, enforce_eager: true}}\n"
    rollout = scenario_of(tmp_path, text, seq=512).recipe.rollout
    assert rollout is not None
    assert rollout.generator == "vllm-server"
    with pytest.raises(UsageError, match=r"vllm\.max_model_len stops with an error"):
        scenario_of(tmp_path, text, seq=513)


def test_tokens_that_end_a_completion_move_nothing(tmp_path: Path) -> None:
    """All completions are counted whole."""
    stops = ON_A_SERVER.replace("use_vllm", "generation_kwargs: {stop_token_ids: [1, 2]}, use_vllm")
    text = "ebft: {mode: structured}\n"
    assert scenario_of(tmp_path, text + stops, seq=256) == scenario_of(tmp_path, text + ON_A_SERVER, seq=256)
