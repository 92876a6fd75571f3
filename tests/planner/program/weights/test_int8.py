"""LLM.int8() matrices, with 64 features in and 128 out; one column of the input holds outliers."""

from __future__ import annotations

from collections import Counter

from planner.program.checkpoint import checkpointed
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor
from planner.program.weights.matrices import linear
from tests.planner.program.matrix_runs import OTHER, Run, view_of

WEIGHT = 64 * 128


def test_a_product_of_int8_rows_and_of_outlier_columns() -> None:
    """An fp32 input: quantised by way of fp16; the int32 product by way of fp16 to fp32;
    ``addmm`` in bf16.
    """
    view = view_of("int8")

    run = Run(lambda torch, x: linear(torch, view, OTHER, x), "fp32")

    of_tokens = [(op, size) for op, unit, size in run.made("forward") if unit == "TOKENS"]
    assert of_tokens == [
        ("to", 64 * 2),
        ("int8_vectorwise_quant", 64),
        ("abs", 64 * 2),
        ("ge", 64),
        ("int8_linear_matmul", 128 * 4),
        ("int8_mm_dequant", 128 * 2),
        ("to", 128 * 4),
        ("to", 128 * 2),
        ("addmm", 128 * 2),
    ]
    assert run.out == "bf16"
    assert run.made("backward") == [
        ("dequantize", "ONE", WEIGHT * 4),
        ("mul", "ONE", 128 * 4),
        ("to", "TOKENS", 128 * 4),
        ("mm", "TOKENS", 64 * 4),
    ]


def test_the_input_stays_until_the_graph_goes_although_it_is_recomputed() -> None:
    """Here the input of the matrix is made within the recomputed part, which keeps nothing else of it."""
    view = view_of("int8")

    def layer(torch: Operators, x: Tensor) -> Tensor:
        return checkpointed(torch, lambda each: linear(torch, view, OTHER, torch.same(each, "neg")), x)

    run = Run(layer, "fp32")

    assert run.kept == run.kept_by_graph == Counter({("neg", "TOKENS", 64 * 4): 1})


def test_older_layers_keep_the_input_quantised_by_columns_too() -> None:
    """They add the outliers in place, copy the result, and quantise the gradient both ways."""
    view = view_of("int8", int8_keeps_quantized_input=True)

    run = Run(lambda torch, x: linear(torch, view, OTHER, x), "fp32")

    assert run.out == "fp32"
    assert run.kept == Counter({("double_quant", "TOKENS", 64): 1})
    quantised = [("to", "TOKENS", 128 * 2), ("double_quant", "TOKENS", 128), ("double_quant", "TOKENS", 128)]
    assert run.made("backward")[:3] == quantised
