"""Towers over squares, and their projectors: LLaVA, LLaVA-NeXT, Gemma 3, PaliGemma, InternVL, Llama 4.

Source: transformers 5.23 models/{clip,siglip,internvl,llava,llava_next,gemma3,paligemma,llama4}/
modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.domain.vision import TowerCode
from planner.program.head.ends import require_gradient
from planner.program.layers.activations import activation
from planner.program.layers.norms import norm
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators, part_of
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.vision.tower_parts import SeeingView, convolution, merged
from planner.program.weights.matrices import autocast, linear, weight_copy

PIXELS = "pixel_values"
"""What a variable of the tower's caller refers to until the projector has run."""


def square_patches(torch: Operators, seeing: SeeingView) -> Tensor:
    """Patches of squares, with a class token beside them where there is one, and a position for each."""
    view, tower = seeing.entry, seeing.tower
    pixels = [_pixels(torch, seeing)]
    with torch.inside("patch_embedding"):
        stream = _embedded(torch, seeing, pixels.pop())
        if seeing.hooked and stream.node is None and torch.grad_enabled:
            require_gradient(stream, torch.path)
    if tower.rule.extra_patches:
        stream = _with_class(torch, view, stream)
    stream = torch.add(stream, _positions(torch, seeing))
    for spec in view.block.norms:
        stream = norm(torch, view, spec, stream)
    return stream


def _embedded(torch: Operators, seeing: SeeingView, pixels: Tensor) -> Tensor:
    """A convolution, or the matrix that Llama 4 has for it, over pixels that were unfolded."""
    if seeing.tower.code == "llama4":
        return linear(torch, seeing.entry, seeing.tower.patch, pixels)
    return convolution(torch, seeing.entry, pixels)


def _pixels(torch: Operators, seeing: SeeingView) -> Tensor:
    """Pixels in the dtype of the tower.

    InternVL's caller casts them, and LLaVA-NeXT's joins those of all images before: either has a variable
    that refers to them until the projector has run.
    """
    tower, dtype = seeing.tower, seeing.entry.dtypes.base
    count = tower.patch.in_features * tower.rule.patch_share
    if tower.code == "llava_next":
        torch.shared[PIXELS] = torch.new(Unit.PATCHES, count, "fp32", "cat")
    pixels = torch.new(Unit.PATCHES, count, dtype, "to")
    if tower.code == "internvl":
        torch.shared[PIXELS] = pixels
    return pixels


def _positions(torch: Operators, seeing: SeeingView) -> Tensor:
    """A position for each patch: rows of a table, or a parameter of their shape (InternVL, Llama 4)."""
    view, tower = seeing.entry, seeing.tower
    n_params = view.block.extra_params - tower.width * tower.rule.extra_patches
    with torch.inside("position_embedding"):
        table = torch.parameter(Unit.ONE, n_params, view.dtypes.base, trained=view.trains_base)
        if tower.code in ("internvl", "llama4"):
            return table
        rows = torch.new(Unit.IMAGE_PATCHES, tower.width, view.dtypes.base, "embedding")

        def backward(*_: object) -> list[Tensor | None]:
            return [torch.new(Unit.ONE, n_params, view.dtypes.base, "embedding_dense_backward")]

        return record(torch, rows, [table], [], backward)


def _with_class(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``cat`` of a class token and the patches: views of the gradient, that of the token summed."""
    width, dtype, count = view.block.linears[0].out_features, view.dtypes.base, x.count
    token = torch.parameter(Unit.ONE, width, dtype, trained=view.trains_base)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.new(Unit.ONE, width, gradient.dtype, "sum"), part_of(gradient, count)]

    return record(torch, torch.new(Unit.PATCHES, width, x.dtype, "cat"), [token, x], [], backward)


def _patches_alone(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """All patches but the class token."""
    share = seeing.tower.rule.patch_share
    return torch.part(x, x.count * share, by_heads=False) if share < 1 else x


def _selected(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """LLaVA's projector, over all patches but the class token."""
    view = seeing.projector
    first, last = view.block.linears
    torch.shared["hidden_states"] = x.alias()
    with torch.inside("multi_modal_projector"):
        chosen = _patches_alone(torch, seeing, x) if seeing.tower.token_share < 1 else x
        return linear(torch, view, last, activation(torch, view, linear(torch, view, first, chosen)))


def _shuffled(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """InternVL's projector: patches of a square become one token, in two copies, behind which a norm and two
    matrices follow.  The gradient of either copy is copied, because it is seen in another shape.
    """
    _held = [torch.shared.pop(PIXELS)]
    for spec in seeing.tower.behind:
        x = norm(torch, seeing.entry, spec, x)
    torch.shared["last_hidden_state"] = x.alias()
    features = torch.same(_patches_alone(torch, seeing, x), "clone")
    features = torch.same(features, "clone")
    with torch.inside("multi_modal_projector"):
        return merged(torch, seeing.projector, features)


def _packed(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """LLaVA-NeXT's projector, whose tokens are laid out as the image is: what the canvas has around it goes,
    and each row of patches gets an end.

    Images are packed one after the other; the tokens of all are there when those of the last are made.
    Source: transformers 5.23 models/llava_next/modeling_llava_next.py LlavaNextModel.pack_image_features.
    """
    _held = [torch.shared.pop(PIXELS)]
    features = _selected(torch, seeing, x)
    view, width = seeing.projector, seeing.projector.block.linears[-1].out_features
    ends = torch.parameter(Unit.ONE, width, view.dtypes.base, trained=view.trains_base)
    shape = (features.unit, features.count)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        canvas = torch.new(Unit.CUT_TOKENS, width, gradient.dtype, "slice_backward")
        tiles = torch.new(Unit.CUT_TOKENS, width, gradient.dtype, "clone")
        del canvas
        _by_images = torch.new(*shape, gradient.dtype, "slice_backward")
        del tiles
        whole = torch.new(*shape, gradient.dtype, "cat")
        return [whole, torch.new(Unit.ONE, width, gradient.dtype, "sum") if view.trains_base else None]

    def forward() -> Tensor:
        laid_out = torch.new(Unit.CUT_TOKENS, width, features.dtype, "clone")
        _with_ends = torch.new(Unit.LINE_TOKENS, width, features.dtype, "cat")
        del laid_out
        return torch.new(Unit.IMAGE_TOKENS, width, features.dtype, "cat")

    return record(torch, forward(), [features, ends], [], backward)


def _averaged(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """Gemma 3's projector: a norm behind the tower, averages of patches, which keep what they read,
    a norm, and a product.

    Source: transformers 5.23 models/siglip/modeling_siglip.py SiglipVisionModel,
    models/gemma3/modeling_gemma3.py Gemma3MultiModalProjector; torch 2.13 derivatives.yaml ``avg_pool2d``.
    """
    view, share = seeing.projector, seeing.tower.token_share
    x = norm(torch, seeing.entry, seeing.tower.behind[0], x)
    torch.shared["last_hidden_state"] = x.alias()
    with torch.inside("multi_modal_projector"):
        by_features = torch.contiguous(x)

        def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            return [torch.like(kept[0], "avg_pool2d_backward", cost=(gradient,))]

        pooled = torch.new(x.unit, x.count * share, x.dtype, "avg_pool2d", cost=[by_features])
        pooled = record(torch, pooled, [by_features], [by_features], backward)
        del by_features
        weight = view.block.linears[0]
        table = torch.parameter(Unit.ONE, weight.weight_count, view.dtypes.base, trained=view.trains_base)
        normed = autocast(torch, view, norm(torch, view, view.block.norms[0], pooled))
        return torch.mm(normed, weight_copy(torch, view, table), weight.out_features * share)


def _projected(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """PaliGemma's projector: a norm behind the tower, and one matrix."""
    x = norm(torch, seeing.entry, seeing.tower.behind[0], x)
    torch.shared["last_hidden_state"] = x.alias()
    with torch.inside("multi_modal_projector"):
        return linear(torch, seeing.projector, seeing.projector.block.linears[0], x)


def _adapted(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """Llama 4's: a norm behind the tower, four patches to a token in two copies, two matrices, and one more.

    The caller has a variable of what the adapter returns.
    Source: transformers 5.23 models/llama4/modeling_llama4.py pixel_shuffle, Llama4VisionMLP2.
    """
    view = seeing.stacked
    assert view is not None
    first, last = view.block.linears
    x = norm(torch, seeing.entry, seeing.tower.behind[0], x)
    with torch.inside("vision_adapter"):
        x = torch.same(_patches_alone(torch, seeing, x), "clone")
        x = activation(torch, view, linear(torch, view, first, torch.same(x, "clone")))
        x = activation(torch, view, linear(torch, view, last, x))
    torch.shared["last_hidden_state"] = x.alias()
    with torch.inside("multi_modal_projector"):
        return linear(torch, seeing.projector, seeing.projector.block.linears[0], x)


SQUARE_PROJECTORS: dict[TowerCode, Callable[[Operators, SeeingView, Tensor], Tensor]] = {
    "llava": _selected,
    "llava_next": _packed,
    "gemma3": _averaged,
    "paligemma": _projected,
    "internvl": _shuffled,
    "llama4": _adapted,
}
"""What makes tokens of patches, by whose code it is."""
