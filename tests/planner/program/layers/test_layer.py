"""The order of a layer: where its norms stand, and what it adds to the stream."""

from __future__ import annotations

from typing import Any

import pytest

from planner.domain.model import MlpSpec
from planner.program.layers.layer import layer
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Unit
from tests.planner.program.layer_views import GATED, HIDDEN, PLAIN, WIDTH, layer_of, norms_of
from tests.planner.program.matrix_runs import Run

MLP = MlpSpec(WIDTH, gated=True, activation="silu")


def order(**changes: Any) -> str:
    """The layer as letters: n a norm, a attention, f the feed-forward part, + a sum of the stream."""
    view = layer_of("lora", MLP, GATED, **changes)
    run = Run(lambda torch, x: layer(torch, view, x), "bf16")
    torch, letters = run.torch, []
    for event in torch.stages["forward"]:
        module, op = torch.ops[event] if event >= 0 else ("", "")
        if op == "pow":
            letters.append("n")
        elif op == "flash_attention" and letters[-1:] != ["a"]:
            letters.append("a")
        elif op == "silu":
            letters.append("f")
        elif op == "add" and not module:
            letters.append("+")
    return "".join(letters)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "na+nf+"),
        ({"norms": norms_of(4)}, "nan+nfn+"),
        ({"reads_stream": True}, "an+fn+"),
        ({"reads_stream": True, "norms_sums": True}, "a+nf+n"),
        ({"parallel": True, "norms": norms_of(1)}, "naf++"),
        ({"parallel": True}, "nanf++"),
        ({"parallel": True, "norms_first": True}, "nnaf++"),
        ({"parallel": True, "branch_sum": "in_place", "norms": norms_of(1)}, "naf+"),
    ],
)
def test_the_order_of_norms_parts_and_sums(changes: dict[str, Any], expected: str) -> None:
    """Llama, Gemma 2, OLMo 2, OPT 350M, Phi, GPT-NeoX, Falcon 40B and Falcon 7B."""
    assert order(**changes) == expected


def test_branches_that_are_scaled_or_dropped_make_more_tensors() -> None:
    """One product for each branch; a dropout and its mask for each."""
    plain, scaled, dropped = (
        len(Run(lambda torch, x, v=view: layer(torch, v, x), "bf16").made("forward"))  # type: ignore[misc]
        for view in (
            layer_of("lora", MLP, GATED, **changes)
            for changes in ({}, {"scales_branches": True}, {"dropouts": 2})
        )
    )

    assert (scaled - plain, dropped - plain) == (2, 4)


def lives(**changes: Any) -> str:
    """The letters of a layer without gradients, and when outputs go: N of a norm, A of attention,
    F of the activation.
    """
    view = layer_of("full", MlpSpec(WIDTH, gated=False, activation="silu"), PLAIN, **changes)
    torch = Operators()
    torch.enter("forward")
    passed = [torch.new(Unit.TOKENS, HIDDEN, "bf16", "input")]
    with torch.no_grad():
        layer(torch, view, passed.pop())
    letters: list[str] = []
    named: dict[int, str] = {}
    modules = [module for module, _ in torch.ops]
    for event in torch.events:
        if event < 0:
            letters.append(named.get(~event, ""))
            continue
        module, op = torch.ops[event]
        # The last tensor that a norm makes is what it returns.
        if module != "norm" or modules[event + 1] != "norm":
            named[event] = {"norm": "N", "out": "A", "act_fn": "F"}.get(module, "")
        letters.append({"pow": "n", "flash_attention": "a", "silu": "f", "add": "+"}.get(op, ""))
    return "".join(letters)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "naN+AnfFN+"),
        ({"keeps_normed": ("sum", "sum")}, "na+ANnfF+N"),
        ({"keeps_normed": ("norm", "norm")}, "na+AnNfF+N"),
        ({"keeps_normed": ("layer", "part")}, "na+AnfFN+N"),
        ({"keeps_attended": True}, "naN+nfFN+A"),
        ({"sums_inside": "mlp"}, "naN+AnfN+F"),
        ({"inline_mlp": True}, "naN+AnNfF+"),
    ],
)
def test_variables_of_a_layer_refer_to_what_is_read_no_more(changes: dict[str, Any], expected: str) -> None:
    """Llama, GPT-2, MPT, StableLM, Llama 4, BLOOM's sum and OPT's two matrices."""
    assert lives(**changes) == expected
