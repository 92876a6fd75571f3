"""Axolotl's diffusion of text: what it makes of a job, and where it is not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.domain.scenario import Scenario
from planner.errors import NotModelledError
from tests.files import filled, read

BASE = "base_model: meta-llama/Llama-3.2-1B\nsequence_len: 512\nlearning_rate: 0.0001\nbf16: true\n"
DIFFUSION = "plugins: [axolotl.integrations.diffusion.DiffusionPlugin]\ndiffusion: {eps: 0.001}\n"


def scenario_of(folder: Path, text: str, **flags: Any) -> Scenario:
    """The job of a file on one card."""
    return filled(read(folder, BASE + text), {"gpu": "a100-80-sxm", **flags})


@pytest.mark.parametrize(
    "text",
    [
        "attn_implementation: sdpa\nsample_packing: true\n",
        "sample_packing: false\n",
        "chunked_cross_entropy: true\n",
    ],
)
def test_tokens_are_guessed_under_a_mask(tmp_path: Path, text: str) -> None:
    """Without labels no loss of the model's own runs, whichever the file asks for."""
    found = scenario_of(tmp_path, DIFFUSION + text)
    assert found.stack.guesses_tokens
    assert not found.stack.tells_samples(found.recipe)
    assert "compute_grad" not in found.stack.loss_backward
    assert found.recipe.loss == "hf"


def test_fused_losses_do_nothing(tmp_path: Path) -> None:
    """Cut cross entropy computes logits where there are no labels."""
    both = DIFFUSION.replace("]", ", axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]")
    found = scenario_of(tmp_path, both)
    assert (found.recipe.loss, found.stack.cut_cross_entropy) == ("hf", False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("attn_implementation: flash_attention_2\n", "modelled for attn_implementation: sdpa alone"),
        ("context_parallel_size: 2\n", "divided samples"),
        ("local_rank:\n", "before 0.14"),
    ],
)
def test_what_is_not_read(tmp_path: Path, text: str, words: str) -> None:
    """Other attention, divided samples, and versions that Transformers 4 runs."""
    with pytest.raises(NotModelledError, match=words):
        scenario_of(tmp_path, DIFFUSION + text, gpu="h100-sxm:2")
