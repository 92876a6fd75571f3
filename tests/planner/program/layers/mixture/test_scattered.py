"""Experts under ScatterMoE: 4 of them, 2 for each token, 64 features around 128; bf16 without autocast."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from planner.program.layers.feed_forward import feed_forward
from planner.program.view import LayerView
from tests.planner.program.layer_views import HIDDEN, WIDTH, layer_of
from tests.planner.program.layers.mixture.test_experts import LINEARS, MIXTURE, ROW
from tests.planner.program.matrix_runs import Run

MIDDLE = 2 * WIDTH * 2
"""Bytes for each token of what its two experts have between their matrices."""
FIRST, SECOND = 4 * 2 * WIDTH * HIDDEN * 2, 4 * WIDTH * HIDDEN * 2
"""Bytes of both tensors of all experts."""


def scattered_run(method: str, *, adapted: bool = False, packed: bool = False) -> Run:
    """One layer forward and back."""
    switches = {"mixture_code": "scattermoe", "quantizes_experts": "held"}
    numerics = {"load_dtype": "bf16"}
    view: LayerView = layer_of(method, MIXTURE, LINEARS, numerics=numerics, **switches)
    if adapted:
        adapter = view.recipe.adapter
        assert adapter is not None
        targets = ("gate_proj", "up_proj", "down_proj")
        view = replace(view, recipe=replace(view.recipe, adapter=replace(adapter, targets=targets)))
    view = replace(view, has_quantized=packed)
    return Run(lambda torch, x: feed_forward(torch, view, x), "bf16")


def made(run: Run, stage: str, *ops: str) -> list[tuple[str, float]]:
    """Sizes that these operators make, in order."""
    return [(op, n_bytes) for op, _, n_bytes in run.made(stage) if op in ops]


def test_rows_are_neither_gathered_nor_weighted_apart() -> None:
    """What is kept: both products, the activated gate and the gated product, beside what the router keeps."""
    run = scattered_run("full")

    assert run.kept == Counter(
        {
            ("softmax", "TOKENS", 4 * 4): 1,
            ("to", "TOKENS", 2 * 2): 1,
            ("scatter2scatter", "TOKENS", 2 * MIDDLE): 1,
            ("silu", "TOKENS", MIDDLE): 1,
            ("mul", "TOKENS", MIDDLE): 1,
            ("scatter2scatter", "TOKENS", ROW): 1,
        }
    )
    assert made(run, "backward", "group", "scatter2scatter", "zeros") == [
        ("zeros", SECOND),
        ("scatter2scatter", MIDDLE),
        ("group", ROW),
        ("zeros", FIRST),
    ]


@pytest.mark.parametrize("adapted", [True, False])
def test_packed_experts_are_kept_expanded_unless_they_have_adapters(adapted: bool) -> None:
    """With adapters they are expanded again; without, a gradient of frozen experts is made for nothing."""
    run = scattered_run("qlora", adapted=adapted, packed=True)

    expanded = [("dequantize", FIRST), ("dequantize", SECOND)]
    assert [each for each in made(run, "forward", "dequantize") if each in expanded] == expanded
    kept = [n_bytes for op, _, n_bytes in run.kept if op == "dequantize"]
    assert sorted(kept) == ([] if adapted else [SECOND, FIRST])
    again = [each for each in made(run, "backward", "dequantize", "zeros") if each[1] in (FIRST, SECOND)]
    op = "dequantize" if adapted else "zeros"
    assert again == [(op, SECOND), (op, FIRST)]


def test_adapters_of_experts_are_neither_merged_nor_is_their_weight_a_gradient() -> None:
    """Beside 16-bit experts the module's own tensors are read again."""
    run = scattered_run("lora", adapted=True)

    assert not made(run, "forward", "baddbmm", "bmm_weight")
    assert not [each for each in run.made("backward") if each[2] in (FIRST, SECOND)]
    assert len(made(run, "backward", "grouped_gram")) == 4
