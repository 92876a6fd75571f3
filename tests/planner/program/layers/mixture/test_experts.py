"""Experts as two tensors: 4 of them, 2 for each token, 64 features around 128; bf16 without autocast."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from planner.domain.model import LinearSpec, MlpSpec
from planner.domain.recipes.recipe import Quantization
from planner.program.layers.feed_forward import feed_forward
from planner.program.ops.tensors import Unit
from tests.planner.program.layer_views import HIDDEN, WIDTH, layer_of
from tests.planner.program.matrix_runs import Run

MIXTURE = MlpSpec(WIDTH, gated=True, activation="silu", n_experts=4, top_k=2)
LINEARS = (
    LinearSpec("gate", "router", HIDDEN, 4, "mlp_in", kind="parameter"),
    LinearSpec(
        "gate_up_proj",
        "expert",
        HIDDEN,
        2 * WIDTH,
        "mlp_in",
        False,
        "parameter",
        4,
        2,
        ("gate_proj", "up_proj"),
    ),
    LinearSpec("down_proj", "expert", WIDTH, HIDDEN, "mlp_mid", False, "parameter", 4, 2, ("down_proj",)),
)
ROW = 2 * HIDDEN * 2
"""Bytes for each token of the rows of its two experts."""


def test_routed_rows_are_saved_for_gradients_of_weights_and_of_routing() -> None:
    """Full: gathered rows, both products, activated gate and gated product, all scores and two weights."""
    view = layer_of("full", MIXTURE, LINEARS)

    run = Run(lambda torch, x: feed_forward(torch, view, x), "bf16")

    middle = 2 * WIDTH * 2
    assert run.kept == Counter(
        {
            ("softmax", "TOKENS", 4 * 4): 1,
            ("to", "TOKENS", 2 * 2): 1,
            ("index", "TOKENS", ROW): 1,
            ("mm", "TOKENS", 2 * middle): 1,
            ("silu", "TOKENS", middle): 1,
            ("mul", "TOKENS", middle): 1,
            ("mm", "TOKENS", ROW): 1,
        }
    )


def test_routing_weights_in_fp32_widen_what_they_weight() -> None:
    """Mixtral's stay in fp32, and the weighted rows with them."""
    narrow, wide = (
        layer_of("full", replace(MIXTURE, router=kind), LINEARS) for kind in ("softmax", "softmax_fp32")
    )

    def weighted(view: object) -> float:
        run = Run(lambda torch, x: feed_forward(torch, view, x), "bf16")  # type: ignore[arg-type]
        return next(n_bytes for op, _, n_bytes in reversed(run.made("forward")) if op == "mul")

    assert (weighted(narrow), weighted(wide)) == (ROW, 2 * ROW)


def test_an_adapter_of_experts_is_merged_into_all_of_them_and_kept() -> None:
    """PEFT adds it to the whole tensor twice: once as a test; the second result is kept for backward."""
    view = layer_of("lora", MIXTURE, LINEARS)
    adapter = view.recipe.adapter
    assert adapter is not None
    targets = ("gate_proj", "up_proj", "down_proj")
    view = replace(view, recipe=replace(view.recipe, adapter=replace(adapter, targets=targets)))

    run = Run(lambda torch, x: feed_forward(torch, view, x), "bf16")

    down, up = 4 * WIDTH * HIDDEN * 2, 4 * 2 * WIDTH * HIDDEN * 2
    merged = [n_bytes for op, _, n_bytes in run.made("forward") if op == "baddbmm"]
    assert merged == [down, up, up, down]
    assert {each: count for each, count in run.kept.items() if each[0] == "baddbmm"} == {
        ("baddbmm", "ONE", down): 1,
        ("baddbmm", "ONE", up): 1,
    }


def test_gradients_of_merged_adapters_come_after_the_products_of_all_experts() -> None:
    """PEFT sees both matrices by expert before the experts run, so in backward these views run last.
    In bf16 they are not cast.
    """
    view = layer_of("lora", MIXTURE, LINEARS)
    adapter = view.recipe.adapter
    assert adapter is not None
    targets = ("gate_proj", "up_proj", "down_proj")
    recipe = replace(view.recipe, adapter=replace(adapter, targets=targets))
    view = replace(view, recipe=recipe, dtypes=replace(view.dtypes, adapter="bf16"))

    torch = Run(lambda torch, x: feed_forward(torch, view, x), "bf16").torch

    events = torch.stages["backward"]
    products = [at for at, slot in enumerate(events) if slot >= 0 and torch.ops[slot] == ("experts", "mm")]
    ready = [at for stage, at, mark in torch.marks if (stage, mark.moment) == ("backward", "gradient")]
    assert len(ready) == 4
    assert max(products) < min(ready)


def test_an_adapter_of_experts_was_a_tensor_of_all_of_them_before_peft_0_21() -> None:
    """What it adds stays while the experts run; the sum is made twice, and the second one is kept."""
    view = layer_of("lora", MIXTURE, LINEARS)
    adapter = view.recipe.adapter
    assert adapter is not None
    targets = ("gate_proj", "up_proj", "down_proj")
    recipe = replace(view.recipe, adapter=replace(adapter, targets=targets))
    view = replace(view, recipe=recipe, stack=replace(view.stack, expert_deltas=True))

    run = Run(lambda torch, x: feed_forward(torch, view, x), "bf16")

    down, up = 4 * WIDTH * HIDDEN * 2, 4 * 2 * WIDTH * HIDDEN * 2
    assert [size for op, unit, size in run.made("forward") if (op, unit) == ("add", "ONE")] == [
        *(down, up, up, down)
    ]
    made = [
        (op, size) for op, unit, size in run.made("forward") if op in ("bmm", "mul", "to") and unit == "ONE"
    ]
    # The product and what is scaled have the dtype of the adapter, fp32.
    assert made == [
        *(("bmm", 2 * down), ("mul", 2 * down), ("to", down)),
        *(("bmm", 2 * up), ("mul", 2 * up), ("to", up)),
    ]
    kept = {each: count for each, count in run.kept.items() if each[1] == "ONE" and each[2] in (up, down)}
    assert kept == {("add", "ONE", down): 1, ("add", "ONE", up): 1}


def held(quantization: Quantization) -> Run:
    """Frozen experts that are packed, and expanded when they are read."""
    view = layer_of("lora", MIXTURE, LINEARS)
    numerics = replace(view.recipe.numerics, quantization=quantization, double_quant=False)
    view = replace(
        view,
        has_quantized=True,
        recipe=replace(view.recipe, numerics=numerics),
        stack=replace(view.stack, fused_experts=True, quantizes_experts="held"),
    )
    return Run(lambda torch, x: feed_forward(torch, view, x), "bf16")


def test_packed_experts_that_are_read_whole_are_kept_for_backward() -> None:
    """Of nf4 one tensor in 16 bits for each of both; of int8 two in fp32, of which the second is kept."""
    up, down = 4 * 2 * WIDTH * HIDDEN, 4 * WIDTH * HIDDEN

    four, eight = held("nf4"), held("int8")

    assert [each for each in four.made("forward") if each[0] == "dequantize"] == [
        ("dequantize", "ONE", 2 * up),
        ("dequantize", "ONE", 2 * down),
    ]
    assert four.kept[("dequantize", "ONE", 2 * up)] == four.kept[("dequantize", "ONE", 2 * down)] == 1
    assert [each for each in eight.made("forward") if each[1] == "ONE"] == [
        *[("mul", "ONE", 4 * up)] * 2,
        *[("mul", "ONE", 4 * down)] * 2,
    ]
    assert eight.kept[("mul", "ONE", 4 * up)] == eight.kept[("mul", "ONE", 4 * down)] == 1
    assert not any(op.startswith("dequant") for op, _, _ in four.made("backward"))


def in_turn(n_experts: int, method: str = "lora") -> Run:
    """The mixture with that many experts that are modules of their own; 2 for each token."""
    router = LinearSpec("gate", "router", HIDDEN, n_experts, "mlp_in", kind="parameter")
    sizes = (
        ("w1", HIDDEN, WIDTH, "mlp_in"),
        ("w3", HIDDEN, WIDTH, "mlp_in"),
        ("w2", WIDTH, HIDDEN, "mlp_mid"),
    )
    matrices = (
        LinearSpec(name, "expert", wide, out, reads, copies=n_experts, active_copies=2)
        for name, wide, out, reads in sizes
    )
    view = layer_of(method, replace(MIXTURE, n_experts=n_experts), (router, *matrices))
    return Run(lambda torch, x: feed_forward(torch, view, x), "bf16")


def test_experts_in_turn_keep_what_all_of_them_save() -> None:
    """Frozen: both factors of each gate, what an expert returns, and that weighted; a quarter of the rows."""
    kept = in_turn(4).kept
    quarter, row = 2 * WIDTH * 2 / 4, ROW / 4
    assert kept["mm", "TOKENS", quarter] == 2 * 4
    assert kept["silu", "TOKENS", quarter] == 4
    assert kept["mm", "TOKENS", row] == 4
    assert kept["mul", "TOKENS", row] == 4
    assert not any(op == "index" and size == row for op, _, size in kept)


def test_many_experts_run_in_eight_groups() -> None:
    """Of 60 experts ten run together."""
    assert in_turn(32).kept["silu", "TOKENS", 2 * WIDTH * 2 / 8] == 8
    assert in_turn(60).kept["silu", "TOKENS", 2 * WIDTH * 2 / 6] == 6


def test_without_a_grouped_kernel_the_host_issues_a_product_for_each_expert() -> None:
    """Two products of 4 experts, forward; of bf16 on a card that has the kernel they are one call each."""

    def launches(groups: bool) -> float:
        view = replace(layer_of("lora", MIXTURE, LINEARS), groups_products=groups)
        view = replace(view, stack=replace(view.stack, fused_experts=True))
        run = Run(lambda torch, x: feed_forward(torch, view, x), "bf16")
        return sum(
            counts[Unit.ONE]
            for (stage, _, kind), counts in run.torch.work.items()
            if (stage, kind) == ("forward", "launches")
        )

    assert launches(groups=False) - launches(groups=True) == 2 * (4 - 1)
