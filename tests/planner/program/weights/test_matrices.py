"""Matrix products: what each kind of weight makes of one, with 64 features in and 128 out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from planner.domain.recipes.recipe import Packing
from planner.domain.recipes.sharding import ZERO2, ZERO3, Sharding
from planner.program.checkpoint import checkpointed
from planner.program.view import LayerView
from planner.program.weights.matrices import linear
from tests.planner.program.matrix_runs import OTHER, SPEC, Run, view_of

WEIGHT = 64 * 128


def test_autocast_casts_bias_weight_and_input_of_a_linear_and_saves_the_last_two() -> None:
    """fp32 weights that are trained: copies in bf16, gradients in bf16 and then in fp32."""
    view, spec = view_of("full", base="fp32"), replace(OTHER, bias=True)

    run = Run(lambda torch, x: linear(torch, view, spec, x), "fp32")

    assert run.made("forward") == [
        ("to", "ONE", 128 * 2),
        ("to", "ONE", WEIGHT * 2),
        ("to", "TOKENS", 64 * 2),
        ("addmm", "TOKENS", 128 * 2),
    ]
    assert run.kept == Counter({("to", "ONE", WEIGHT * 2): 1, ("to", "TOKENS", 64 * 2): 1})
    assert run.made("backward") == [
        ("addmm", "TOKENS", 64 * 2),
        ("addmm", "ONE", WEIGHT * 2),
        ("sum", "ONE", 128 * 2),
        ("to", "TOKENS", 64 * 4),
        ("to", "ONE", WEIGHT * 4),
        ("to", "ONE", 128 * 4),
    ]


def test_a_conv1d_casts_its_bias_last() -> None:
    """``addmm(bias, x, weight)`` has its bias first, and arguments are cast from the last to the first."""
    view, spec = view_of("full", base="fp32"), replace(OTHER, bias=True, kind="conv1d")

    run = Run(lambda torch, x: linear(torch, view, spec, x), "fp32")

    sizes = [n_bytes for _, _, n_bytes in run.made("forward")]
    assert sizes == [WEIGHT * 2, 64 * 2, 128 * 2, 128 * 2]


def test_without_autocast_nothing_is_cast() -> None:
    """A bf16 weight and a bf16 input: the output, and the input's gradient after that of the weight."""
    view = view_of("full", base="bf16", autocast=False)

    run = Run(lambda torch, x: linear(torch, view, OTHER, x), "bf16")

    assert run.made("forward") == [("mm", "TOKENS", 128 * 2)]
    assert run.made("backward") == [("mm", "ONE", WEIGHT * 2), ("mm", "TOKENS", 64 * 2)]


def under(view: LayerView, sharding: Sharding) -> LayerView:
    """The same under another sharding."""
    return replace(view, recipe=replace(view.recipe, sharding=sharding))


def test_the_linear_of_zero3_makes_the_gradient_of_its_input_first() -> None:
    """It is a function of DeepSpeed, whose order is its own."""
    view, spec = under(view_of("full", base="bf16", autocast=False), ZERO3), replace(OTHER, bias=True)

    run = Run(lambda torch, x: linear(torch, view, spec, x), "bf16")

    assert run.made("forward") == [("mm", "TOKENS", 128 * 2)]
    assert run.made("backward") == [
        ("mm", "TOKENS", 64 * 2),
        ("mm", "ONE", WEIGHT * 2),
        ("sum", "ONE", 128 * 2),
    ]


def test_the_linear_of_zero3_saves_the_input_of_a_frozen_matrix() -> None:
    """torch's own saves only what a gradient needs."""
    kept = {}
    for sharding in (ZERO2, ZERO3):
        view = under(view_of("lora", base="bf16", autocast=False), sharding)
        run = Run(lambda torch, x, view=view: linear(torch, view, OTHER, torch.same(x, "mul")), "bf16")
        kept[sharding] = run.kept[("mul", "TOKENS", 64 * 2)]
    assert kept == {ZERO2: 0, ZERO3: 1}


def test_a_4bit_weight_loaded_in_fp16_is_cast_in_backward_alone() -> None:
    """Doubly quantised scales (one fp32 for 64 elements) come first; forward expands straight into bf16."""
    view = view_of("qlora", numerics={"load_dtype": "fp16"})
    scales = WEIGHT / 64 * 4

    run = Run(lambda torch, x: linear(torch, view, OTHER, x), "fp32")

    assert run.made("forward") == [
        ("to", "TOKENS", 64 * 2),
        ("dequantize", "ONE", scales),
        ("add", "ONE", scales),
        ("dequantize", "ONE", WEIGHT * 2),
        ("mm", "TOKENS", 128 * 2),
        ("to", "TOKENS", 128 * 4),
    ]
    assert not run.kept
    assert run.made("backward") == [
        ("to", "TOKENS", 128 * 2),
        ("dequantize", "ONE", scales),
        ("dequantize", "ONE", WEIGHT * 2),
        ("to", "ONE", WEIGHT * 2),
        ("mm", "TOKENS", 64 * 2),
        ("to", "TOKENS", 64 * 4),
    ]


def test_an_older_4bit_layer_keeps_its_input_as_long_as_the_graph() -> None:
    """Its cast input is an attribute of the context: checkpointing does not drop it,
    and backward does not let go of it.
    """
    view = view_of("qlora", linear4bit_keeps_input=True)

    run = Run(lambda torch, x: checkpointed(torch, lambda each: linear(torch, view, OTHER, each), x), "fp32")

    assert run.kept == Counter({("to", "TOKENS", 64 * 2): 1})


def test_a_buffer_for_expanded_weights_serves_forward_alone() -> None:
    """The weight of a product of backward is expanded beside it."""
    view = view_of(
        "qlora", keeps_expanded_weight=True, numerics={"load_dtype": "bf16", "double_quant": False}
    )

    run = Run(lambda torch, x: linear(torch, view, OTHER, x), "bf16")

    assert run.made("forward") == [("mm", "TOKENS", 128 * 2)]
    assert run.made("backward") == [("dequantize", "ONE", WEIGHT * 2), ("mm", "TOKENS", 64 * 2)]


def test_a_gptq_weight_is_unpacked_by_int32_and_kept_until_backward() -> None:
    """fp16 under bf16: autograd keeps the copy that autocast made of the unpacked weight, not the weight."""
    view = view_of("qlora", packed_kernels="auto", numerics={"quantization": "gptq-int4"})

    run = Run(lambda torch, x: linear(torch, view, OTHER, x), "bf16")

    assert [size for _, unit, size in run.made("forward") if unit == "ONE"] == [
        WEIGHT * 4,  # shifted out of int32
        WEIGHT,  # narrowed
        WEIGHT,  # masked
        WEIGHT * 2,  # scales of every element
        WEIGHT,  # zeros of every element
        WEIGHT,  # less these
        WEIGHT * 2,  # times the scales
        WEIGHT * 2,  # cast by autocast
    ]
    assert run.kept == Counter({("to", "ONE", WEIGHT * 2): 1})


def test_a_gptq_weight_unpacked_by_one_kernel_is_kept_in_the_dtype_of_the_input() -> None:
    """gptqmodel: an fp16 weight, and the copy that the product keeps; backward unpacks nothing."""
    view = view_of("qlora", packed_kernels="gptqmodel", numerics={"quantization": "gptq-int4"})

    run = Run(lambda torch, x: linear(torch, view, OTHER, x), "bf16")

    assert run.made("forward") == [
        ("dequantize", "ONE", WEIGHT * 2),
        ("to", "ONE", WEIGHT * 2),
        ("mm", "TOKENS", 128 * 2),
    ]
    assert run.kept == Counter({("to", "ONE", WEIGHT * 2): 1})
    assert run.made("backward") == [("mm", "TOKENS", 64 * 2)]


def test_an_awq_weight_is_copied_for_each_sample_in_backward() -> None:
    """An fp32 input is kept in fp16, autocast casts both factors,
    and backward repeats the weight in the gradient's dtype.
    """
    view = view_of("qlora", packed_kernels="gptqmodel", numerics={"quantization": "awq-int4"})

    run = Run(lambda torch, x: linear(torch, view, OTHER, x), "fp32")

    assert run.made("forward") == [
        ("to", "TOKENS", 64 * 2),
        ("dequantize", "ONE", WEIGHT * 2),
        ("to", "ONE", WEIGHT * 2),
        ("to", "TOKENS", 64 * 2),
        ("mm", "TOKENS", 128 * 2),
        ("to", "TOKENS", 128 * 4),
    ]
    assert run.kept == Counter({("to", "TOKENS", 64 * 2): 1})
    assert run.made("backward") == [
        ("to", "TOKENS", 128 * 2),
        ("dequantize", "ONE", WEIGHT * 2),
        ("to", "ONE", WEIGHT * 2),
        ("repeat", "ROWS", WEIGHT * 2),
        ("bmm", "TOKENS", 64 * 2),
        ("to", "TOKENS", 64 * 2),
        ("to", "TOKENS", 64 * 4),
    ]


def test_an_aqlm_weight_is_decoded_in_both_passes_and_its_result_copied() -> None:
    """Scales are applied to the product in place, and to the gradient in another tensor."""
    view = view_of("qlora", numerics={"quantization": "aqlm", "load_dtype": "bf16"})

    run = Run(lambda torch, x: linear(torch, view, OTHER, x), "bf16")

    assert run.made("forward") == [
        ("dequantize", "ONE", WEIGHT * 2),
        ("linear", "TOKENS", 128 * 2),
        ("clone", "TOKENS", 128 * 2),
    ]
    assert run.made("backward") == [
        ("mul", "TOKENS", 128 * 2),
        ("dequantize", "ONE", WEIGHT * 2),
        ("mm", "TOKENS", 64 * 2),
    ]


def fine_grained(side: int, *, has_deepgemm: bool) -> Run:
    """A matrix in fp8, whose scales are shared by squares of so many elements, or by all where that is 0."""
    view = view_of("lora", numerics={"quantization": "fp8", "packing": Packing(side)})
    view = replace(view, has_quantized=True, has_deepgemm=has_deepgemm)
    return Run(lambda torch, x: linear(torch, view, OTHER, x), "bf16")


def test_a_weight_in_fp8_is_made_anew_in_backward_alone() -> None:
    """The input in 8 bits with a scale for each 32 of its 64 features; in backward scales of 2 x 4 squares,
    which are repeated over 32 rows, and nothing that forward kept.
    """
    run = fine_grained(32, has_deepgemm=False)
    assert run.made("forward") == [
        ("quantize", "TOKENS", 64),
        ("scales", "TOKENS", 2 * 4),
        ("fp8_matmul", "TOKENS", 128 * 2),
    ]
    assert not run.kept
    assert run.made("backward") == [
        ("to", "ONE", 8 * 2),
        ("dequantize", "ONE", WEIGHT * 2),
        ("repeat_interleave", "ONE", 8 * 32 * 2),
        ("mm", "TOKENS", 64 * 2),
    ]


def test_one_scale_for_a_matrix_in_fp8_is_not_repeated() -> None:
    """Nor does a token have more than one, which is no memory."""
    run = fine_grained(0, has_deepgemm=True)
    assert run.made("forward") == [("quantize", "TOKENS", 64), ("fp8_matmul", "TOKENS", 128 * 2)]
    assert run.made("backward")[1:] == [("dequantize", "ONE", WEIGHT * 2), ("mm", "TOKENS", 64 * 2)]


def test_deepgemm_casts_by_operators() -> None:
    """Blocks of 128, of which a token of 64 features has half a scale."""
    made = fine_grained(128, has_deepgemm=True).made("forward")
    large = [each for each in made if each[2] >= 64]
    assert large == [
        ("empty", "TOKENS", 64 * 2),
        ("abs", "TOKENS", 64 * 2),
        ("to", "TOKENS", 64 * 4),
        ("mul", "TOKENS", 64 * 4),
        ("to", "TOKENS", 64),
        ("fp8_matmul", "TOKENS", 128 * 2),
    ]


def test_a_recomputed_layer_ends_before_its_last_product() -> None:
    """The last saved tensor is an input of that product, which is saved before the product runs."""
    view = view_of("full", base="fp32")

    run = Run(lambda torch, x: checkpointed(torch, lambda each: linear(torch, view, SPEC, each), x), "fp32")

    assert run.made("backward")[:3] == [
        ("to", "ONE", WEIGHT * 2),
        ("to", "TOKENS", 64 * 2),
        ("mm", "ONE", WEIGHT * 2),
    ]
