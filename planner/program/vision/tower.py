"""What a vision-language model runs before its first layer: patches, the layers of the tower,
the projector, and the scatter.

The layers are those of :mod:`planner.program.layers.layer`, with patches in the place of tokens.
Source: transformers 5.23 models/{qwen2_vl,qwen2_5_vl,paddleocr_vl}/modeling_*.py, the ``forward`` of the
tower and of the model around it, vision_utils.py; torch 2.13
aten/src/ATen/native/cuda/IndexKernel.cpp (``masked_scatter__cuda``, ``masked_select``).
Ignored: lengths of pieces and numbers of positions in the text (below 64 bytes for each token);
the workspace of the convolution.
"""

from __future__ import annotations

from dataclasses import replace

from planner.domain.vision import TowerSpec
from planner.errors import NotModelledError
from planner.program.head.ends import EndsView, require_gradient, token_rows
from planner.program.head.inputs import make_masks
from planner.program.layers.norms import norm
from planner.program.ops.autograd import LEAF_ORDER, record
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Node, Tensor, Unit
from planner.program.ops.work import in_units
from planner.program.recorded_part import Template
from planner.program.view import LayerView
from planner.program.vision.forward_tower import seen
from planner.program.vision.glm_tower import downsampled, placed
from planner.program.vision.pixtral_tower import JOINED_PROJECTORS, UNTIL_RETURN, joined_patches
from planner.program.vision.square_tower import PIXELS, SQUARE_PROJECTORS, square_patches
from planner.program.vision.tower_parts import SeeingView, convolution, merged

TOKEN_EMBEDS, TOKEN_GRADIENT = "token_embeds", "gradient of token_embeds"
_UNTIL_TOKENS = (PIXELS, "position_ids")
"""What the variables of the tower's callers refer to until the projector has run."""
UNTIL_TOKENS = (*_UNTIL_TOKENS, *UNTIL_RETURN)
"""The same, and what variables of the tower do, whosever code it is."""
_OF_PATCHES = {
    Unit.ONE: Unit.ONE,
    Unit.RANK: Unit.RANK,
    Unit.TOKENS: Unit.PATCHES,
    Unit.RANK_TOKENS: Unit.RANK_PATCHES,
    Unit.IMAGE_PATCHES: Unit.IMAGE_PATCHES,
    Unit.PAIRS: Unit.PATCH_PAIRS,
    **{unit: unit for unit in (Unit.IMAGE_TOKENS, Unit.CUT_TOKENS, Unit.LINE_TOKENS)},
}


def of_patches(template: Template, *, joined: bool = False) -> Template:
    """A template that was run on tokens, for patches.

    Scores of one image go before those of the next are made.  ``joined``: layers see all images in one row,
    whose pairs are those of a mask.

    Raises:
        NotModelledError: sizes that no tower has here, or scores that backward needs.
    """
    if Unit.PAIRS in template.units and template.stages["backward"] and not joined:
        raise NotModelledError(
            "eager attention of a vision tower that gradients run through is not modelled: use --attention "
            "sdpa or flash2"
        )
    strange = next((unit for unit in template.units if unit not in _OF_PATCHES), None)
    if strange is not None:
        raise NotModelledError(
            f"a vision tower whose memory grows with {strange.name.lower()} is not modelled"
        )
    known = _OF_PATCHES | {Unit.PAIRS: Unit.PATCH_SQUARES if joined else Unit.IMAGE_PAIRS}
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
    stream = seen(torch, seeing) if seeing.tower.code == "forward" else _patches(torch, seeing)
    torch.shared[TOKEN_EMBEDS] = tokens
    return _with_gradient(torch, stream, tokens, arrived)


def _patches(torch: Operators, seeing: SeeingView) -> Tensor:
    """Pixels in the dtype of the tower, and the convolution over patches."""
    view, patch = seeing.entry, seeing.tower.patch
    if seeing.tower.code in JOINED_PROJECTORS:
        return joined_patches(torch, seeing)
    if seeing.tower.code in SQUARE_PROJECTORS:
        return square_patches(torch, seeing)
    torch.shared[PIXELS] = pixels = torch.new(Unit.PATCHES, patch.in_features, view.dtypes.base, "to")
    torch.shared["position_ids"] = torch.new(Unit.PATCHES, 2, "int64", "cat")
    with torch.inside("patch_embed"):
        stream = convolution(torch, view, pixels)
        if seeing.hooked and stream.node is None and torch.grad_enabled:
            require_gradient(stream, torch.path)
    if seeing.tower.code == "glm4v" and view.block.norms:
        return placed(torch, seeing, stream)
    if seeing.tower.code == "qwen2_5_vl":
        stream = _in_order_of_windows(torch, stream)
    if seeing.tower.code in ("qwen3_vl", "paddleocr_vl"):
        stream = torch.add(stream, _positions(torch, view, seeing.tower))
    return stream


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
    of_others = SQUARE_PROJECTORS | JOINED_PROJECTORS
    if seeing.tower.code in of_others:
        return of_others[seeing.tower.code](torch, seeing, x)
    held = [torch.shared.pop(name) for name in _UNTIL_TOKENS]
    if seeing.tower.code == "glm4v":
        return downsampled(torch, seeing, x)
    by_image = seeing.tower.code == "paddleocr_vl"
    if by_image:
        x = norm(torch, seeing.entry, seeing.tower.behind[0], x)
    torch.shared["last_hidden_state"] = x.alias()
    with torch.inside("merger"):
        out = merged(torch, seeing.projector, x, moves=by_image)
        out = torch.cat([out]) if by_image else out
    if seeing.tower.code == "qwen2_5_vl":
        out = _in_order_of_windows(torch, out)
    del held
    return out


def stacked(torch: Operators, seeing: SeeingView, number: int, x: Tensor) -> Tensor:
    """The stream behind a layer as it is;
    what a merger of its own makes of it waits for a layer of the language model.
    """
    assert seeing.stacked is not None
    name = f"deepstack {number}"
    arrived = [torch.shared.pop(gradient_of(name))] if gradient_of(name) in torch.shared else []
    with torch.inside(f"deepstack_merger_list {number}"):
        features = merged(torch, seeing.stacked, x)
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


def scatter(torch: Operators, ends: EndsView, seeing: SeeingView, passed: list[Tensor]) -> Tensor:
    """The stream that the first layer reads: rows of the token table,
    with those of images in the place of their tokens.

    ``passed`` holds the tokens of images, and is emptied.  All variables live until the model returns.
    """
    embeds = [torch.shared.pop(TOKEN_EMBEDS)]
    if seeing.tower.code in ("gemma3", "paligemma", "internvl", "llama4"):
        features = passed.pop()
    else:
        torch.shared["pooler_output"] = parts = _by_images(torch, seeing, passed.pop())
        features = torch.cat([parts])
        del parts
    stream = _scattered(torch, ends, embeds, features)
    torch.shared["image_embeds"] = features
    stream = _join_stacked(torch, seeing, stream)
    torch.shared["inputs_embeds"] = stream
    make_masks(torch, ends.kinds)
    return stream


def _by_images(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """Tokens of each image: parts of one tensor, but where each has its own."""
    return x if seeing.tower.code == "llava_next" else _split(torch, x)


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
