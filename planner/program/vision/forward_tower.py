"""A tower of which nothing needs a gradient, so that nothing of it stays but the tokens that it makes.

What half a layer makes is counted as if all of it were there at once.  Places that nothing fills have a mask,
which torch's own attention takes as numbers.
Source: transformers 5.23 models/{gemma4,gemma4_unified}/modeling_*.py; torch 2.13
aten/src/ATen/native/transformers/attention.cpp convert_boolean_attn_mask.
Ignored: the time of attention, positions, pooling, and what norms make in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.model import LinearSpec
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.view import MASK_KEYS, LayerView
from planner.program.vision.tower_parts import SeeingView
from planner.program.weights.matrices import base_product

_OF_ATTENTION = 4
"""The first matrices of a layer: query, key, value and output."""


def seen(torch: Operators, seeing: SeeingView) -> Tensor:
    """Tokens of images: patches, layers of which each reads the stream and adds to it, and the projector."""
    view, tower = seeing.entry, seeing.tower
    pixels = torch.new(Unit.PATCHES, tower.patch.in_features, view.dtypes.base, "to")
    stream = base_product(torch, view, tower.patch, pixels)
    del pixels
    masked = bool(seeing.layers) and view.recipe.attention == "sdpa"
    mask = torch.new(Unit.PATCH_PAIRS, 1, "bool", "expand") if masked else None
    for layer in seeing.layers:
        linears = layer.block.linears
        made = _products(torch, layer, linears[:_OF_ATTENTION], stream)
        if mask is not None:
            _attend(torch, mask, stream.dtype, pads=tower.rule.max_patches % MASK_KEYS != 0)
        stream = torch.like(stream, "add", cost=(made[-1],))
        del made
        made = _products(torch, layer, linears[_OF_ATTENTION:], stream)
        stream = torch.like(stream, "add", cost=(made[-1],))
        del made
    del mask
    projector = seeing.projector
    last = projector.block.linears[0]
    tokens = torch.new(Unit.IMAGE_TOKENS, last.in_features, view.dtypes.base, "pool", cost=[stream])
    torch.shared["last_hidden_state"] = tokens.alias()
    return base_product(torch, projector, last, tokens)


def _attend(torch: Operators, mask: Tensor, dtype: Dtype, *, pads: bool) -> None:
    """The mask as numbers, of which the kernel copies rows that are no multiple of its alignment."""
    numbers = torch.like(mask, "zeros_like", dtype)
    other = torch.like(mask, "logical_not")
    del other
    _padded = torch.like(numbers, "pad") if pads else None


def _products(
    torch: Operators, layer: LayerView, linears: Sequence[LinearSpec], stream: Tensor
) -> list[Tensor]:
    """The stream behind a norm, and what some matrices of a layer make."""
    return [torch.like(stream, "norm"), *(_product(torch, layer, spec, stream) for spec in linears)]


def _product(torch: Operators, layer: LayerView, spec: LinearSpec, stream: Tensor) -> Tensor:
    """One matrix over rows as wide as it reads."""
    fits = stream.count == spec.in_features
    rows = stream if fits else Tensor(None, stream.unit, spec.in_features, stream.dtype)
    return base_product(torch, layer, spec, rows)
