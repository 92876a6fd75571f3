"""Stand-ins for k-bit layers: what they store and expand, by hand; bitsandbytes' own are elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("bitsandbytes")
import_or_skip("peft")

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from measure.trace.build import build_on_meta
from measure.trace.cuda.quantized import MatMul8bit, dequantized, is_packed, quantize_on_meta
from planner.catalog.left_whole import with_left_whole
from planner.domain.recipes.recipe import Numerics, Quantization
from planner.errors import NotModelledError
from tests.against_libraries.scenarios import Setup
from tests.measure.trace.tiny import llama

# The down projection of the small model.
ROWS, COLUMNS = 256, 688
ELEMENTS = ROWS * COLUMNS


def down_projection(quantization: Quantization, **more: Any) -> Any:
    """That layer of a quantised model."""
    setup = Setup(rank=4, numerics=Numerics("bf16", "bf16-mixed", quantization, **more))
    model = build_on_meta(*llama(setup)).model
    assert not is_packed(model.get_output_embeddings().weight), "the head stays as it is"
    return model.get_submodule("base_model.model.model.layers.1.mlp.down_proj").base_layer


def stored(layer: Any) -> dict[str, int]:
    """Bytes by name."""
    return {name: each.nbytes for name, each in (*layer.named_parameters(), *layer.named_buffers())}


def test_a_4_bit_matrix_has_a_scale_for_each_64_elements() -> None:
    """Half a byte an element, fp32 scales, and a code book of 16 numbers."""
    layer = down_projection("nf4")
    assert stored(layer) == {"weight": ELEMENTS // 2, "absmax": 4 * ELEMENTS // 64, "code": 64}
    assert is_packed(layer.weight)
    assert layer.weight.arrival == (2 * ELEMENTS, "absmax", "weight", "code")


def test_scales_that_are_quantised_are_bytes_with_a_scale_for_each_256() -> None:
    """2752 blocks of 64 elements are 11 groups of scales."""
    layer = down_projection("nf4", double_quant=True)
    scales = 4 * ELEMENTS // 64
    constants = ("offset", "nested_absmax", "absmax", "code")
    assert layer.weight.arrival == (2 * ELEMENTS, scales, "weight", scales, *constants)
    sizes = stored(layer)
    assert sizes["absmax"] == ELEMENTS // 64 == 2752
    assert (sizes["nested_absmax"], sizes["offset"]) == (4 * 11, 4)


def test_packed_bytes_may_be_stored_as_floats() -> None:
    """Fewer elements, the same bytes."""
    weight = down_projection("fp4", quant_storage="bf16").weight
    assert (weight.dtype, weight.numel(), weight.nbytes) == (torch.bfloat16, ELEMENTS // 4, ELEMENTS // 2)


def test_an_int8_matrix_has_a_scale_for_each_row() -> None:
    """It was loaded in 16-bit, and copied to fp16 before it was quantised."""
    layer = down_projection("int8")
    assert stored(layer) == {"weight": ELEMENTS, "SCB": 4 * ROWS}
    assert layer.weight.arrival == (2 * ELEMENTS, 2 * ELEMENTS, "weight", "SCB")


def test_a_matrix_is_expanded_into_the_dtype_that_was_quantised() -> None:
    """Whatever is stored, DoRA reads rows and columns of bf16."""
    layer = down_projection("nf4", double_quant=True)
    with FakeTensorMode(allow_non_fake_inputs=True):
        matrix = dequantized(layer)
    assert (tuple(matrix.shape), matrix.dtype) == ((ROWS, COLUMNS), torch.bfloat16)


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_what_the_checkpoint_left_whole_is_not_packed(quantization: Quantization) -> None:
    """One matrix of one layer; the head, which no list replaces, neither."""
    case, config = llama(Setup(rank=4, numerics=Numerics("bf16", "bf16-mixed", quantization)))
    model = with_left_whole(case.model, ["model.layers.1.mlp"], "here")
    built = build_on_meta(replace(case, model=model), config).model
    whole = {name for name, module in built.named_modules() if type(module) is nn.Linear}
    ours = {name.partition("base_model.model.")[2] for name in whole if "lora" not in name}
    assert {name.removesuffix(".base_layer") for name in ours} >= {
        "lm_head",
        *(f"model.layers.1.mlp.{each}_proj" for each in ("gate", "up", "down")),
    }
    assert not any(".layers.0." in name for name in ours)


def test_another_quantisation_is_refused() -> None:
    """GPTQ bases are not traced: no number, but a sentence with the way out."""
    case, _ = llama(Setup(rank=4, numerics=Numerics("bf16", "bf16-mixed", "gptq-int4")))
    with pytest.raises(
        NotModelledError, match=r"quantization 'gptq-int4' cannot be traced: .*use --method qlora"
    ):
        quantize_on_meta(nn.Module(), case.recipe)


def test_inputs_of_four_dimensions_are_refused() -> None:
    """The real layer takes outlier columns along the second dimension,
    which is theirs only after three were made two.
    """
    layer = nn.Linear(16, 32)
    with pytest.raises(NotModelledError, match="two or three dimensions"):
        MatMul8bit.apply(torch.ones(2, 1, 4, 16), None, layer)
