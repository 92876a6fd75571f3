"""Where Liger has no functions for a model, its switch changes nothing."""

from __future__ import annotations

import pytest

from planner.domain.scenario import Scenario
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve


def _scenario(model: str, **flags: object) -> Scenario:
    job = {"model": model, "method": "lora", "gpu": "h100-sxm", "seq": 1024, "loss": "liger"}
    return resolve(from_flags({**job, **flags}))


@pytest.mark.parametrize(
    ("model", "stack", "loss"),
    [
        ("bloom-1b1", "hf-trainer@5", "hf"),
        ("granite-3.1-2b", "hf-trainer@5", "hf"),
        ("llama-3.1-8b", "hf-trainer@5", "liger"),
        ("olmo-3-7b", "hf-trainer@5", "liger"),
        # LLaMA-Factory has a list of its own, which is shorter.
        ("olmo-3-7b", "llama-factory", "hf"),
        ("qwen3-8b", "llama-factory", "liger"),
        ("qwen3-8b", "llama-factory@0.8", "hf"),
        # Axolotl has a forward for all of them.
        ("command-r7b-12-2024", "axolotl", "liger"),
    ],
)
def test_the_switch_reaches_the_models_that_the_software_lists(model: str, stack: str, loss: str) -> None:
    """Others get the loss of the model."""
    assert _scenario(model, stack=stack).recipe.loss == loss


def test_an_older_version_knows_fewer_models() -> None:
    """The list is that of the version."""
    versions = {"versions": ("liger-kernel==0.6.1",)}
    assert _scenario("qwen3-8b", **versions).recipe.loss == "liger"
    assert _scenario("olmo-3-7b", **versions).recipe.loss == "hf"


def test_norms_that_a_file_switches_on_with_liger_stay_as_they_are() -> None:
    """Where Liger passes the model over, its norms are those of Transformers."""
    switches = {"switches": ("fused_norm=true", "fused_mlp=true")}
    assert _scenario("llama-3.1-8b", **switches).stack.fused_norm
    assert not _scenario("bloom-1b1", **switches).stack.fused_norm
