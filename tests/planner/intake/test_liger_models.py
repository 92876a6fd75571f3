"""Where Liger has no functions for a model, its switch changes nothing."""

from __future__ import annotations

import pytest

from planner.domain.scenario import Scenario
from tests.jobs import resolved


def _scenario(model: str, **flags: object) -> Scenario:
    job = {"model": model, "method": "lora", "gpu": "h100-sxm", "seq": 1024, "loss": "liger"}
    return resolved({**job, **flags})


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
        # Axolotl has a forward for all of them.
        ("command-r7b-12-2024", "axolotl", "liger"),
    ],
)
def test_the_switch_reaches_the_models_that_the_software_lists(model: str, stack: str, loss: str) -> None:
    """Others get the loss of the model."""
    assert _scenario(model, stack=stack).recipe.loss == loss


def test_an_older_version_knows_fewer_models() -> None:
    """The list is that of the version."""
    versions = {"versions": ("liger-kernel==0.6.4",)}
    assert _scenario("qwen3-8b", **versions).recipe.loss == "liger"
    assert _scenario("exaone-4.0-1.2b").recipe.loss == "liger"
    assert _scenario("exaone-4.0-1.2b", **versions).recipe.loss == "hf"


def test_kernels_that_a_file_switches_on_with_liger_need_a_function() -> None:
    """Where Liger passes the model over, its norms are those of Transformers, whatever the loss; Granite's
    function leaves the loss alone.
    """
    switches = {"switches": ("fused_norm=liger", "fused_mlp=liger")}
    for model, loss, fused in (
        ("llama-3.1-8b", "hf", True),
        ("bloom-1b1", "hf", False),
        ("granite-3.1-2b", "liger", True),
    ):
        stack = _scenario(model, loss=loss, **switches).stack
        assert (stack.fused_norm, stack.fused_mlp) == (fused, fused)
    assert _scenario("bloom-1b1", switches=("fused_norm=true",)).stack.fused_norm
