"""Pixtral's tower, whose layers see the patches of all images of a micro-batch in one row, and the projectors
behind it: LLaVA's, and Mistral 3's, which merges patches.

Source: transformers 5.23 models/{pixtral,llava,mistral3}/modeling_*.py; torch 2.13
aten/src/ATen/native/cuda/Im2Col.cu, which reads a contiguous copy.
Ignored: what positions are made of, which is gone before the layers run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.domain.vision import TowerCode
from planner.program.head.ends import require_gradient
from planner.program.head.inputs import MASK, has_mask
from planner.program.layers.activations import activation
from planner.program.layers.norms import norm
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.recorded_part import Shape
from planner.program.view import LayerView
from planner.program.vision.tower_parts import SeeingView, convolution
from planner.program.weights.matrices import linear

BLOCK_MASK = "mask of images"
UNTIL_RETURN = ("patch_embeds_list", "patch positions", "position_embeddings")
"""What variables of the tower refer to until it returns."""


def joined_patches(torch: Operators, seeing: SeeingView) -> Tensor:
    """The convolution, its output as rows of all images behind one another, a norm, and what the layers get
    beside the stream: positions, and a mask of all pairs where the kernel takes one.
    """
    view, layer = seeing.entry, seeing.tower.groups[0].block
    pixels = [torch.new(Unit.PATCHES, seeing.tower.patch.in_features, view.dtypes.base, "to")]
    with torch.inside("patch_conv"):
        embeds = convolution(torch, view, pixels.pop())
        if seeing.hooked and embeds.node is None and torch.grad_enabled:
            require_gradient(embeds, torch.path)
    torch.shared[UNTIL_RETURN[0]] = embeds.alias()
    rows = torch.cat([embeds])
    stream = norm(torch, view, view.block.norms[0], rows)
    del rows
    torch.shared[UNTIL_RETURN[1]] = torch.new(Unit.PATCHES, 2, "int64", "cat")
    turns = 2 * layer.attention.head_dim
    torch.shared[UNTIL_RETURN[2]] = torch.new(Unit.PATCHES, turns, stream.dtype, "to")
    if has_mask(beside_mask(view, stream.dtype)):
        torch.shared[BLOCK_MASK] = torch.new(Unit.PATCH_SQUARES, 1, stream.dtype, "full")
    return stream


def beside_mask(view: LayerView, dtype: Dtype, *, pads: bool = False) -> LayerView:
    """The view of a layer that gets a mask in the dtype of the stream, made once for all layers; ``pads``:
    the kernel copies it.
    """
    dtypes = replace(view.dtypes, table=dtype)
    stack = replace(view.stack, sdpa_mask="stream")
    return replace(view, masked=True, embedded=dtype, dtypes=dtypes, stack=stack, pads_mask=pads)


def given_to_layers(view: LayerView, dtype: Dtype) -> dict[str, Shape]:
    """What such a layer gets as arguments, which checkpointing keeps: positions, and the mask."""
    turns = Shape(2 * view.block.attention.head_dim, dtype, False, Unit.TOKENS, UNTIL_RETURN[2])
    mask = {MASK: Shape(1, dtype, False, Unit.PAIRS, BLOCK_MASK)} if has_mask(view) else {}
    return {"positions": turns, **mask}


def _selected(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """LLaVA's projector over all patches."""
    _let_go(torch, x)
    view = seeing.projector
    first, last = view.block.linears
    with torch.inside("multi_modal_projector"):
        return linear(torch, view, last, activation(torch, view, linear(torch, view, first, x)))


def _merged(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """Mistral 3's projector: a norm, patches that become one token side by side, and three matrices."""
    _let_go(torch, x)
    view = seeing.projector
    merging, first, last = view.block.linears
    with torch.inside("multi_modal_projector"):
        normed = norm(torch, view, view.block.norms[0], x)
        # The merger has a list of the blocks of each image until it returns.
        blocks = _blocks(torch, normed)
        merged = linear(torch, view, merging, torch.contiguous(blocks, "cat"))
        del normed, blocks
        return linear(torch, view, last, activation(torch, view, linear(torch, view, first, merged)))


def _blocks(torch: Operators, x: Tensor) -> Tensor:
    """``unfold`` image by image, and backward ``fold``: both copy what they read, and the gradients of all
    images are joined.
    """
    width, unit, dtype = x.count, x.unit, x.dtype

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        _folded = torch.like(gradient, "col2im")
        copy = torch.new(Unit.IMAGE_PATCHES, width, dtype, "clone")
        del copy
        return [torch.new(unit, width, dtype, "cat")]

    def forward() -> Tensor:
        out = torch.like(x, "im2col")
        _copy = torch.new(Unit.IMAGE_PATCHES, width, dtype, "clone")
        return out

    return record(torch, forward(), [x], [], backward)


def _let_go(torch: Operators, x: Tensor) -> None:
    """The tower has returned: its variables are gone, and the model has its last state."""
    _held = [torch.shared.pop(name) for name in UNTIL_RETURN]
    torch.shared["hidden_states"] = x.alias()


JOINED_PROJECTORS: dict[TowerCode, Callable[[Operators, SeeingView, Tensor], Tensor]] = {
    "pixtral": _selected,
    "mistral3": _merged,
}
"""What makes tokens of patches, by whose code it is."""
