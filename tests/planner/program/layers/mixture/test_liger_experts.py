"""Experts as Liger's function runs them: 4 of them, 2 for each token, 64 features around 128; bf16."""

from __future__ import annotations

from collections import Counter

import pytest

from planner.program.layers.feed_forward import feed_forward
from tests.jobs import resolved
from tests.planner.program.layer_views import HIDDEN, WIDTH, layer_of
from tests.planner.program.layers.mixture.test_experts import LINEARS, MIXTURE, ROW
from tests.planner.program.matrix_runs import Run

MIDDLE = 2 * WIDTH * 2
"""Bytes for each token of what its two experts have between their matrices."""
FIRST, SECOND = 4 * 2 * WIDTH * HIDDEN * 2, 4 * WIDTH * HIDDEN * 2
"""Bytes of both tensors of all experts."""


def run_of(method: str) -> Run:
    """One layer forward and back."""
    view = layer_of(method, MIXTURE, LINEARS, numerics={"load_dtype": "bf16"}, mixture_code="liger")
    return Run(lambda torch, x: feed_forward(torch, view, x), "bf16")


def test_only_the_first_product_is_kept() -> None:
    """Beside what the router keeps: no gathered rows, nor what experts return or their gates."""
    run = run_of("full")

    assert run.kept == Counter(
        {
            ("softmax", "TOKENS", 4 * 4): 1,
            ("to", "TOKENS", 2 * 2): 1,
            ("up_proj", "TOKENS", 2 * MIDDLE): 1,
        }
    )


@pytest.mark.parametrize("method", ["full", "lora"])
def test_both_gradients_of_weights_are_made_trained_or_not(method: str) -> None:
    """What frozen experts get is made, too, and goes when the function returns."""
    run = run_of(method)

    made = [
        (op, n_bytes) for op, _, n_bytes in run.made("backward") if op in ("up_proj", "down_proj", "zeros")
    ]
    assert made[:5] == [
        ("down_proj", 2 * MIDDLE),
        ("zeros", 2 * 2),
        ("zeros", SECOND),
        ("up_proj", ROW),
        ("zeros", HIDDEN * 2),
    ]
    assert ("zeros", FIRST) in made


def mixture_code(liger: str, model: str, switch: str = "fused_mlp=liger") -> str:
    """Whose experts a job has."""
    flags = {
        "model": model,
        "method": "full",
        "gpu": "h200-sxm",
        "seq": 512,
        "batch": 1,
        "stack": "trl",
        "versions": (f"liger-kernel=={liger}",),
        "switches": (switch,),
    }
    return resolved(flags).stack.mixture_code


def test_which_versions_replace_experts_of_which_models() -> None:
    """Of Qwen 3 since 0.8.0, where the switch for the gated activation is on; gpt-oss keeps its own."""
    assert mixture_code("0.7.0", "qwen3-30b-a3b") == "transformers"
    assert mixture_code("0.8.0", "qwen3-30b-a3b") == "liger"
    assert mixture_code("0.8.0", "qwen3-30b-a3b", "fused_norm=liger") == "transformers"
    assert mixture_code("0.8.0", "gpt-oss-20b") == "transformers"
