"""A matrix and its adapter as one function: what it keeps and makes, for 64 features to 128."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from planner.program.view import LayerView
from planner.program.weights.fused_adapters import fused_feed_forward, fused_linear, is_fused
from tests.planner.program.layer_views import GATED, HIDDEN, WIDTH
from tests.planner.program.matrix_runs import SPEC, Run, view_of

IN, OUT = 2 * HIDDEN, 2 * WIDTH
NARROW = ("mm", "RANK_TOKENS", 2)


def view(kernels: str = "fused", *, dropout: float = 0.0, **changes: Any) -> LayerView:
    """LoRA in bf16 all over, unless told otherwise."""
    dtypes = {"base": "bf16", "compute": "bf16", "adapter": "bf16", "autocast": False}
    return view_of("lora", dropout=dropout, adapter_kernels=kernels, **{**dtypes, **changes})


@pytest.mark.parametrize(
    ("kernels", "dropout", "fused"),
    [
        ("eager", 0.0, False),
        ("compiled", 0.0, False),
        ("fused", 0.0, True),
        ("fused_apart", 0.0, True),
        ("fused", 0.1, False),
        ("fused_dropped", 0.1, True),
    ],
)
def test_who_has_such_a_function(kernels: str, dropout: float, fused: bool) -> None:
    """Only some kernels take dropout."""
    assert is_fused(view(kernels, dropout=dropout), SPEC) is fused


@pytest.mark.parametrize(
    ("method", "quantization", "fused"), [("int8", "int8", False), ("qlora", "nf4", True)]
)
def test_matrices_of_4_bits_have_one_and_those_of_8_bits_do_not(
    method: str, quantization: str, fused: bool
) -> None:
    """Nor has a full fine-tune, which has no adapter."""
    stored = view_of(method, adapter_kernels="fused")
    assert stored.recipe.numerics.quantization == quantization
    assert is_fused(stored, SPEC) is fused
    assert not is_fused(view_of("full", adapter_kernels="fused"), SPEC)


@pytest.mark.parametrize(("kernels", "fused"), [("fused", False), ("fused_dropped", True)])
def test_unsloths_leaves_a_matrix_with_a_bias_to_peft(kernels: str, *, fused: bool) -> None:
    """Query, key and value of Qwen2.5; on an H100 they kept three copies of their input."""
    assert is_fused(view(kernels), replace(SPEC, bias=True)) is fused


def test_query_key_and_value_are_one_function_where_all_are_adapted() -> None:
    """By themselves output projections alone are; a router or a joined matrix never is."""
    query, key, value, out, *_ = (layer := view()).block.linears
    assert [each.name for each in (query, key, value, out)] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    some, every = ("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj", "qkv_proj")
    assert layer.recipe.adapter is not None
    for targets, fused in ((some, False), (every, True)):
        adapter = replace(layer.recipe.adapter, targets=targets)
        adapted = replace(layer, recipe=replace(layer.recipe, adapter=adapter))
        assert [is_fused(adapted, each) for each in (query, value, out)] == [fused, fused, False]
        assert not is_fused(adapted, replace(query, name="qkv_proj"))


def test_it_keeps_its_input_alone() -> None:
    """The product and a narrow one forward; gradients of both factors, then of the input, backward."""
    run = Run(lambda torch, x: fused_linear(torch, view(), SPEC, x), "bf16")
    assert run.made("forward") == [("mm", "TOKENS", OUT), NARROW]
    assert not run.kept - Counter({("mm", "TOKENS", OUT): 1})
    assert run.made("backward") == [
        ("addmm", "RANK", IN),
        ("addmm", "RANK", OUT),
        NARROW,
        NARROW,
        ("mm", "TOKENS", IN),
        NARROW,
    ]


def test_older_ones_make_what_the_adapter_adds() -> None:
    """As large as the product that it is added to, in either direction."""
    run = Run(lambda torch, x: fused_linear(torch, view("fused_apart"), SPEC, x), "bf16")
    assert run.made("forward") == [("mm", "TOKENS", OUT), NARROW, ("mm", "TOKENS", OUT)]
    assert run.made("backward")[-3:] == [("mm", "TOKENS", IN), NARROW, ("mm", "TOKENS", IN)]


def test_adapters_in_fp32_are_copied_for_each_product() -> None:
    """One copy of each factor forward, both again backward."""
    run = Run(lambda torch, x: fused_linear(torch, view(adapter="fp32"), SPEC, x), "bf16")
    assert [each for each in run.made("forward") if each[0] == "to"] == [
        ("to", "RANK", IN),
        ("to", "RANK", OUT),
    ]
    assert run.made("backward")[:2] == [("to", "RANK", IN), ("to", "RANK", OUT)]


def test_with_dropout_the_input_is_kept_twice_and_has_two_gradients() -> None:
    """What dropout made and its mask of a byte for each feature stay, and the product is made once more."""
    run = Run(lambda torch, x: fused_linear(torch, view("fused_dropped", dropout=0.1), SPEC, x), "bf16")
    assert run.kept["dropout", "TOKENS", IN] == run.kept["dropout", "TOKENS", HIDDEN] == 1
    backward = [op for op, _, _ in run.made("backward")]
    assert backward.count("zeros_like") == backward.count("dropout_backward") == 1


def test_a_gated_part_keeps_what_gate_and_up_return() -> None:
    """What the gate makes of both is made again; gradients of all three are written over what was saved."""
    run = Run(lambda torch, x: fused_feed_forward(torch, view(), GATED, x), "bf16")
    assert {each: n for each, n in run.kept.items() if each != ("mm", "TOKENS", IN)} == {
        ("mm", "TOKENS", OUT): 2
    }
    assert ("swiglu", "TOKENS", OUT) in run.made("forward")
    made = run.made("backward")
    assert made[0] == ("mm", "TOKENS", OUT), "of what the gate made"
    assert [size for op, _, size in made if op == "addmm"] == [IN, OUT, IN, OUT, OUT, IN]
    assert [each for each in made if each[:2] == ("mm", "TOKENS")] == made[:1]


@pytest.mark.parametrize(("kernels", "n"), [("fused", 0), ("fused_apart", 0), ("fused_dropped", 1)])
def test_axolotls_makes_the_gradient_of_its_input_anew(kernels: str, n: int) -> None:
    """Others write it over the input, as Axolotl did before its pull request 3800."""
    run = Run(lambda torch, x: fused_feed_forward(torch, view(kernels), GATED, x), "bf16")
    apart = 2 * (kernels == "fused_apart")
    assert run.made("backward").count(("mm", "TOKENS", IN)) == n + apart
