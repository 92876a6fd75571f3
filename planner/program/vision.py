"""What a vision-language model runs before its first layer: patches, the layers of the tower,
the projector, and the scatter.

The layers are those of :mod:`planner.program.layers.layer`, with patches in the place of tokens.
Source: transformers 5.23 models/{qwen2_vl,qwen2_5_vl}/modeling_*.py, the ``forward`` of the tower and of the
model around it, vision_utils.py; torch 2.13 aten/src/ATen/native/cuda/IndexKernel.cpp
(``masked_scatter__cuda``, ``masked_select``).
Ignored: lengths of pieces and numbers of positions in the text (below 64 bytes for each token);
the workspace of the convolution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.domain.model import NormSpec
from planner.domain.vision import TowerSpec
from planner.errors import NotModelledError
from planner.program.head.ends import EndsView, require_gradient, token_rows
from planner.program.head.inputs import make_masks
from planner.program.layers.activations import activation
from planner.program.layers.norms import norm
from planner.program.ops.autograd import LEAF_ORDER, record
from planner.program.ops.casts import rows_of
from planner.program.ops.operators import Operators, part_of
from planner.program.ops.tensors import Node, Tensor, Unit
from planner.program.ops.work import in_units
from planner.program.recorded_part import BACKWARD, Template
from planner.program.view import LayerView
from planner.program.weights.matrices import autocast, linear, weight_copy

TOKEN_EMBEDS, TOKEN_GRADIENT = "token_embeds", "gradient of token_embeds"
_UNTIL_TOKENS = ("pixel_values", "position_ids")
"""What the variables of the tower's callers refer to until the projector has run."""
_OF_PATCHES = {
    Unit.ONE: Unit.ONE,
    Unit.RANK: Unit.RANK,
    Unit.TOKENS: Unit.PATCHES,
    Unit.RANK_TOKENS: Unit.RANK_PATCHES,
    Unit.IMAGE_PATCHES: Unit.IMAGE_PATCHES,
    Unit.PAIRS: Unit.PATCH_PAIRS,
}


@dataclass(frozen=True, slots=True)
class SeeingView:
    """The tower around its layers.

    ``hooked``: what its first layer reads is made to require a gradient; ``differentiated``:
    gradients reach its layers.
    """

    tower: TowerSpec
    entry: LayerView
    projector: LayerView
    stacked: LayerView | None
    hooked: bool
    differentiated: bool


def of_patches(template: Template) -> Template:
    """A template that was run on tokens, for patches.

    Scores of one image go before those of the next are made.

    Raises:
        NotModelledError: sizes that no tower has here, or scores that backward needs.
    """
    if Unit.PAIRS in template.units and template.stages[BACKWARD]:
        raise NotModelledError(
            "eager attention of a vision tower that gradients run through is not modelled: use --attention "
            "sdpa or flash2"
        )
    strange = next((unit for unit in template.units if unit not in _OF_PATCHES), None)
    if strange is not None:
        raise NotModelledError(
            f"a vision tower whose memory grows with {strange.name.lower()} is not modelled"
        )
    known = _OF_PATCHES | {Unit.PAIRS: Unit.IMAGE_PAIRS}
    units = tuple(known[unit] for unit in template.units)
    gradients = tuple((_OF_PATCHES[gradient[0]], *gradient[1:]) for gradient in template.gradients)
    shares = {
        name: (slot, replace(shape, unit=_OF_PATCHES[shape.unit]))
        for name, (slot, shape) in template.shares.items()
    }
    out = replace(template.out, unit=_OF_PATCHES[template.out.unit])
    return replace(
        template,
        units=units,
        gradients=gradients,
        shares=shares,
        out=out,
        work=in_units(template.work, _OF_PATCHES),
    )


def entry(torch: Operators, ends: EndsView, seeing: SeeingView) -> Tensor:
    """The stream of the tower, behind a look-up of the tokens, which wait for it.

    Where tokens need a gradient it comes to them last.
    """
    arrived = [torch.shared.pop(TOKEN_GRADIENT)] if TOKEN_GRADIENT in torch.shared else []
    tokens = token_rows(torch, ends)
    stream = _patches(torch, seeing)
    torch.shared[TOKEN_EMBEDS] = tokens
    return _with_gradient(torch, stream, tokens, arrived)


def _patches(torch: Operators, seeing: SeeingView) -> Tensor:
    """Pixels in the dtype of the tower, and the convolution over patches."""
    view, patch = seeing.entry, seeing.tower.patch
    if seeing.tower.code in ("llava", "gemma3"):
        return _square_patches(torch, seeing)
    torch.shared["pixel_values"] = pixels = torch.new(Unit.PATCHES, patch.in_features, view.dtypes.base, "to")
    torch.shared["position_ids"] = torch.new(Unit.PATCHES, 2, "int64", "cat")
    with torch.inside("patch_embed"):
        stream = _convolution(torch, view, pixels)
        if seeing.hooked and stream.node is None and torch.grad_enabled:
            require_gradient(stream, torch.path)
    if seeing.tower.code == "qwen2_5_vl":
        stream = _in_order_of_windows(torch, stream)
    if seeing.tower.code == "qwen3_vl":
        stream = torch.add(stream, _positions(torch, view, seeing.tower))
    return stream


def _square_patches(torch: Operators, seeing: SeeingView) -> Tensor:
    """Patches of images of one size, with a class token before them where there is one,
    and a position for each.

    Source: transformers 5.23 models/{clip,siglip}/modeling_*.py, their ``VisionEmbeddings``.
    """
    view, tower = seeing.entry, seeing.tower
    share = 1.0 if not tower.rule.extra_patches else tower.token_share
    with torch.inside("patch_embedding"):
        stream = _convolution(
            torch, view, torch.new(Unit.PATCHES, tower.patch.in_features * share, view.dtypes.base, "to")
        )
        if seeing.hooked and stream.node is None and torch.grad_enabled:
            require_gradient(stream, torch.path)
    dtype, trained = view.dtypes.base, view.trains_base
    if tower.rule.extra_patches:
        stream = _with_class(torch, view, stream)
    with torch.inside("position_embedding"):
        n_params = view.block.extra_params - tower.width * tower.rule.extra_patches
        table = torch.parameter(Unit.ONE, n_params, dtype, trained=trained)
        rows = torch.new(Unit.IMAGE_PATCHES, tower.width, dtype, "embedding")
        rows = record(
            torch,
            rows,
            [table],
            [],
            lambda *_: [torch.new(Unit.ONE, n_params, dtype, "embedding_dense_backward")],
        )
    stream = torch.add(stream, rows)
    del rows
    for spec in view.block.norms:
        stream = _one_norm(torch, view, spec, stream)
    return stream


def _with_class(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``cat`` of a class token and the patches: views of the gradient, that of the token summed."""
    width, dtype, count = view.block.linears[0].out_features, view.dtypes.base, x.count
    token = torch.parameter(Unit.ONE, width, dtype, trained=view.trains_base)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.new(Unit.ONE, width, gradient.dtype, "sum"), part_of(gradient, count)]

    return record(torch, torch.new(Unit.PATCHES, width, x.dtype, "cat"), [token, x], [], backward)


def _convolution(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """A product of each patch with all kernels."""
    spec, trained = view.block.linears[0], view.trains_base
    weight = torch.parameter(Unit.ONE, spec.weight_count, view.dtypes.base, trained=trained)
    bias = (
        torch.parameter(Unit.ONE, spec.bias_count, view.dtypes.base, trained=trained) if spec.bias else None
    )
    bias = None if bias is None else weight_copy(torch, view, bias)
    weight = weight_copy(torch, view, weight)
    return torch.mm(
        autocast(torch, view, x), weight, spec.out_features * rows_of(spec, x), bias=bias, to_unit=x.unit
    )


def _positions(torch: Operators, view: LayerView, tower: TowerSpec) -> Tensor:
    """Four rows of a table for each patch, weighted in fp32 and summed up."""
    dtype, trained, count = view.dtypes.base, view.trains_base, 4 * tower.width
    with torch.inside("pos_embed"):
        table = torch.parameter(Unit.ONE, view.block.extra_params, dtype, trained=trained)
        rows = torch.new(Unit.PATCHES, count, dtype, "embedding")
        rows = record(
            torch,
            rows,
            [table],
            [],
            lambda *_: [torch.new(Unit.ONE, table.count, dtype, "embedding_dense_backward")],
        )
    weighted = record(
        torch,
        torch.like(rows, "mul", "fp32"),
        [rows],
        [],
        lambda *_: [torch.new(Unit.PATCHES, count, "fp32", "mul")],
    )
    del rows
    # The gradient of a sum is spread out without a copy.
    spread = record(
        torch,
        torch.new(Unit.PATCHES, tower.width, "fp32", "sum"),
        [weighted],
        [],
        lambda *_: [Tensor(None, Unit.PATCHES, count, "fp32")],
    )
    del weighted
    return torch.to(spread, dtype)


def _in_order_of_windows(torch: Operators, x: Tensor) -> Tensor:
    """``x[window_index]``: a copy, whose gradient is written into zeros."""
    unit, count = x.unit, x.count

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.new(unit, count, gradient.dtype, "index_backward")]

    return record(torch, torch.like(x, "index"), [x], [], backward)


def projector(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """Tokens of patches: a norm, and two matrices over the patches that become one token.

    The tower returns its last state, too, which lives until the language model has run.
    """
    if seeing.tower.code == "llava":
        return _selected(torch, seeing, x)
    if seeing.tower.code == "gemma3":
        return _averaged(torch, seeing, x)
    held = [torch.shared.pop(name) for name in _UNTIL_TOKENS]
    torch.shared["last_hidden_state"] = x.alias()
    with torch.inside("merger"):
        out = _merged(torch, seeing.projector, x)
    if seeing.tower.code == "qwen2_5_vl":
        out = _in_order_of_windows(torch, out)
    del held
    return out


def _selected(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """LLaVA's projector, over all patches but the class token."""
    view, share = seeing.projector, seeing.tower.token_share
    first, last = view.block.linears
    with torch.inside("multi_modal_projector"):
        chosen = torch.part(x, x.count * share, by_heads=False) if share < 1 else x
        return linear(torch, view, last, activation(torch, view, linear(torch, view, first, chosen)))


def _averaged(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """Gemma 3's projector: a norm behind the tower, averages of patches, which keep what they read,
    a norm, and a product.

    Source: transformers 5.23 models/siglip/modeling_siglip.py SiglipVisionModel,
    models/gemma3/modeling_gemma3.py Gemma3MultiModalProjector; torch 2.13 derivatives.yaml ``avg_pool2d``.
    """
    view, share = seeing.projector, seeing.tower.token_share
    x = _one_norm(torch, seeing.entry, seeing.tower.behind[0], x)
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
        normed = autocast(torch, view, _one_norm(torch, view, view.block.norms[0], pooled))
        return torch.mm(normed, weight_copy(torch, view, table), weight.out_features * share, to_unit=x.unit)


def _merged(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    first, last = view.block.linears
    out = linear(torch, view, first, _one_norm(torch, view, view.block.norms[0], x))
    return linear(torch, view, last, activation(torch, view, out))


def stacked(torch: Operators, seeing: SeeingView, number: int, x: Tensor) -> Tensor:
    """The stream behind a layer as it is;
    what a merger of its own makes of it waits for a layer of the language model.
    """
    assert seeing.stacked is not None
    name = f"deepstack {number}"
    arrived = [torch.shared.pop(gradient_of(name))] if gradient_of(name) in torch.shared else []
    with torch.inside(f"deepstack_merger_list {number}"):
        features = _merged(torch, seeing.stacked, x)
    torch.shared[name] = features
    return _with_gradient(torch, x, features, arrived)


def _with_gradient(torch: Operators, stream: Tensor, beside: Tensor, arrived: list[Tensor]) -> Tensor:
    """``stream``, whose backward also sends the gradient on that ``beside`` has got elsewhere."""
    if not arrived or beside.node is None:
        return stream

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [gradient, arrived.pop()]

    return record(torch, stream.alias(), [stream, beside], [], backward)


def gradient_of(name: str) -> str:
    """The name of the gradient of what one part makes for others, which goes the other way."""
    return f"gradient of {name}"


def _hands_on(torch: Operators, name: str, tensor: Tensor) -> Tensor:
    """``tensor``, whose gradient goes to the part that made it."""

    def hand_on(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        torch.shared[gradient_of(name)] = gradient
        return []

    tensor.node = Node(name, LEAF_ORDER, hand_on)
    return tensor


def add_stacked(torch: Operators, seeing: SeeingView, number: int, x: Tensor) -> Tensor:
    """Behind a layer of the language model: rows of images taken out of a copy,
    summed with what was stacked, and put back.

    Source: transformers 5.23 models/qwen3_vl/modeling_qwen3_vl.py Qwen3VLTextModel._deepstack_process.
    """
    name = f"deepstack embeds {number}"
    beside = torch.shared.pop(name)
    if seeing.differentiated and torch.grad_enabled:
        beside = _hands_on(torch, name, beside)
    unit, count, rows = x.unit, x.count, beside.unit
    copy = torch.contiguous(x)

    def of_taken(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.new(unit, count, gradient.dtype, "index_backward")]

    taken = record(torch, torch.new(rows, beside.count, x.dtype, "index"), [copy], [], of_taken)
    local = torch.add(taken, beside)
    del taken

    def of_put(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        zeros = torch.new(rows, local_count, gradient.dtype, "zeros")
        first = torch.like(gradient, "index_put")
        del zeros
        return [first, torch.new(rows, local_count, gradient.dtype, "index")]

    local_count = local.count
    return record(torch, copy.alias(), [copy, local], [], of_put)


def _one_norm(torch: Operators, view: LayerView, spec: NormSpec, x: Tensor) -> Tensor:
    with torch.inside("norm"):
        return norm(torch, view, spec, x)


def scatter(torch: Operators, ends: EndsView, seeing: SeeingView, passed: list[Tensor]) -> Tensor:
    """The stream that the first layer reads: rows of the token table,
    with those of images in the place of their tokens.

    ``passed`` holds the tokens of images, and is emptied.  All variables live until the model returns.
    """
    embeds = [torch.shared.pop(TOKEN_EMBEDS)]
    if seeing.tower.code == "gemma3":
        features = passed.pop()
    else:
        torch.shared["pooler_output"] = split = _split(torch, passed.pop())
        features = torch.cat([split])
        del split
    stream = _scattered(torch, ends, embeds, features)
    torch.shared["image_embeds"] = features
    stream = _join_stacked(torch, seeing, stream)
    torch.shared["inputs_embeds"] = stream
    make_masks(torch, ends.kinds)
    return stream


def _join_stacked(torch: Operators, seeing: SeeingView, stream: Tensor) -> Tensor:
    """What was stacked, as one tensor each for all images."""
    for number in range(len(seeing.tower.deepstack)):
        name, joined = f"deepstack {number}", f"deepstack embeds {number}"
        arrived = [torch.shared.pop(gradient_of(joined))] if gradient_of(joined) in torch.shared else []
        features = torch.shared.pop(name)
        if seeing.differentiated and torch.grad_enabled:
            features = _hands_on(torch, name, features)
        torch.shared[joined] = beside = torch.cat([_split(torch, features)])
        stream = _with_gradient(torch, stream, beside, arrived)
    return stream


def _split(torch: Operators, x: Tensor) -> Tensor:
    """``torch.split`` by images: views, whose gradients are joined."""
    return record(torch, x.alias(), [x], [], lambda _, gradient: [torch.like(gradient, "cat")])


def _scattered(torch: Operators, ends: EndsView, embeds: list[Tensor], features: Tensor) -> Tensor:
    """``embeds.masked_scatter(mask, features)``: a copy;
    on the way a mask of all elements and their running sum.

    Backward: a copy without the images' rows for the tokens; for the images the numbers of all their
    elements, and these.  ``embeds`` is emptied.
    """
    given = embeds.pop()
    if torch.grad_enabled and (ends.needs_entry or ends.trains(ends.embed, ends.model.token_embedding.name)):
        given = _hands_on(torch, TOKEN_EMBEDS, given)
    out = torch.like(given, "masked_scatter")
    _mask = torch.new(given.unit, given.count, "bool", "masked_scatter")
    _sums = torch.new(given.unit, given.count, "int64", "masked_scatter")
    shape = (features.unit, features.count)
    needs_images = features.node is not None

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        of_tokens = torch.like(gradient, "masked_fill")
        if not needs_images:
            return [of_tokens, None]
        _again = torch.new(gradient.unit, gradient.count, "bool", "masked_select")
        _numbers = torch.new(shape[0], 3 * shape[1], "int64", "masked_select")
        return [of_tokens, torch.new(*shape, gradient.dtype, "masked_select")]

    return record(torch, out, [given, features], [], backward)
