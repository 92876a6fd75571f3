"""The kernels of attention: which one runs, what it saves, and what it takes while it runs.

Source: torch 2.13 ``ATen/native/transformers``: attention.cpp, cuda/sdp_utils.cpp,
cuda/flash_attn/flash_api.cpp, cuda/attention_backward.cu; transformers 5.23 integrations/sdpa_attention.py.
Ignored: rows of a mask of tokens padded to 16 keys; workspaces of key and value gradients above heads of 128
features.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from planner.domain.recipes.attention_kernels import ATTENTION_FACTS
from planner.program.head.inputs import MASK, has_mask
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.ops.work import FusedAttention, Multiplies, Product
from planner.program.view import LayerView
from planner.program.weights.matrices import autocast

_FLASH_WIDEST = 256
_WIDTH_MULTIPLE = 8
# Rows and columns of the tiles in which the memory-efficient kernel sums up the query's gradient.
_TILE_COLUMNS = (32, 64, 96, 128)
Kernel = Literal["flash", "efficient", "math"]
Pairs = Literal["triangle", "square"]
MASK_KEYS = 16
"""A mask's rows are padded to a multiple of so many keys."""
PRODUCTS, BACKWARD_PRODUCTS = 2, 5
"""Products of a query's and a key's features, and of probabilities and values;
backward the scores once more, and four gradients.

Source: FlashAttention-2 (arXiv 2307.08691), algorithms 1 and 2.
"""


def fused_attention(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What attention's kernel returns, rows of all heads together."""
    masked = has_mask(view)
    if view.recipe.attention == "sdpa" and view.block.attention.sdpa_input == "grouped":
        key, value = _for_all_heads(torch, view, key, value, masked=masked)
    out = _attend(torch, view, query, key, value, masked=masked)
    return _merged(torch, out)


def split_pieces(torch: Operators, x: Tensor) -> Tensor:
    """``torch.split``: views, whose gradients are joined.

    Source: transformers 5.23 models/qwen2_5_vl/modeling_qwen2_5_vl.py Qwen2_5_VLVisionAttention.forward.
    """

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.like(gradient, "cat")]

    return record(torch, x.alias(), [x], [], backward)


def _attend(
    torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor, *, masked: bool
) -> Tensor:
    """One call of torch's operator, whose arguments autocast casts."""
    # The compiler evaluates the arguments of autocast's wrapper from the last to the first.
    value = autocast(torch, view, value)
    key = autocast(torch, view, key)
    query = autocast(torch, view, query)
    kernel = kernel_of(view, query, masked=masked)
    if kernel == "math":
        return _unfused(torch, view, query, key, value)
    if kernel == "efficient":
        return _efficient(torch, view, (query, key, value), _bias(torch, view, query) if masked else None)
    return _flash(torch, view, query, key, value)


def kernel_of(view: LayerView, query: Tensor, *, masked: bool) -> Kernel:
    """The first that takes the inputs: flash, memory-efficient, unfused.  Source: ``select_sdp_backend``."""
    spec = view.block.attention
    if ATTENTION_FACTS[view.recipe.attention].is_flash:
        return "flash"
    same_width = spec.head_dim == spec.value_head_dim
    one_for_all = spec.sdpa_input == "broadcast" and spec.n_kv_heads != spec.n_heads
    if (
        query.dtype != "fp32"
        and same_width
        and spec.head_dim <= _FLASH_WIDEST
        and not (masked or one_for_all)
    ):
        return "flash"
    multiple = _WIDTH_MULTIPLE if query.dtype != "fp32" else _WIDTH_MULTIPLE // 2
    grouped = (
        spec.sdpa_input == "grouped" and spec.n_kv_heads != spec.n_heads and not _repeats(view, masked=masked)
    )
    if one_for_all or grouped or spec.head_dim % multiple or spec.value_head_dim % multiple:
        return "math"
    return "efficient"


def _repeats(view: LayerView, *, masked: bool) -> bool:
    """``use_gqa_in_sdpa``: a kernel takes fewer key heads where there is no mask and heads have one width.

    Transformers 4 and some loops copy heads always.  Source: transformers 4.37 models/llama/modeling_llama.py
    LlamaSdpaAttention.forward.
    """
    spec = view.block.attention
    return (
        view.stack.copies_kv_heads
        or view.stack.model_code == "transformers-4"
        or masked
        or spec.head_dim != spec.value_head_dim
        or spec.head_dim > _FLASH_WIDEST
    )


def _for_all_heads(
    torch: Operators, view: LayerView, key: Tensor, value: Tensor, *, masked: bool
) -> tuple[Tensor, Tensor]:
    heads, shared = view.block.attention.n_heads, view.block.attention.n_kv_heads
    if heads == shared or not _repeats(view, masked=masked):
        return key, value
    repeat = spread if shared == 1 else repeat_kv
    repeated = repeat(torch, key, heads // shared)
    return repeated, repeat(torch, value, heads // shared)


def repeat_kv(torch: Operators, x: Tensor, times: int) -> Tensor:
    """Each head of keys or values copied ``times`` times; the gradients of the copies are summed."""
    out = torch.new(x.unit, x.count * times, x.dtype, "clone", cost=[x])
    out.head_by_head = True
    unit, count = x.unit, x.count

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        summed = torch.new(unit, count, gradient.dtype, "sum", cost=[gradient])
        summed.head_by_head = True
        return [summed]

    return record(torch, out, [x], [], backward)


def spread(torch: Operators, x: Tensor, times: int) -> Tensor:
    """One head seen as many, which takes no copy; the gradients of all are summed."""
    out = x.alias()
    unit, count = x.unit, x.count
    out.count = count * times
    return record(
        torch,
        out,
        [x],
        [],
        lambda _, gradient: [torch.new(unit, count, gradient.dtype, "sum", cost=[gradient])],
    )


def _bias(torch: Operators, view: LayerView, query: Tensor) -> Tensor | None:
    """The mask as the kernel reads it: an additive one in the query's dtype.

    It is made anew from a boolean one in each layer.

    Source: ``convert_boolean_attn_mask``, ``pad_bias``; a mask in the dtype of the embeddings is cast by
    autocast alone.
    """
    if view.stack.sdpa_mask == "given":
        return torch.shared.get(MASK)
    if view.stack.sdpa_mask == "stream":
        same = view.dtypes.table == query.dtype
        mask = torch.shared.get(MASK) if same else torch.new(Unit.PAIRS, 1, query.dtype, "to")
        return torch.new(Unit.PAIRS, 1, query.dtype, "pad") if view.pads_mask else mask
    additive = torch.new(Unit.PAIRS, 1, query.dtype, "zeros_like")
    _inverted = torch.new(Unit.PAIRS, 1, "bool", "logical_not")
    return additive


def _flash(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """FlashAttention: saves query, key, value, output and one fp32 number for each row and head.

    Its output lies as the query does, its gradients as their inputs do.
    Widths of heads are padded to multiples of 8.  Backward: see :func:`_flash_gradients`.
    """
    spec = view.block.attention
    padded = -(-spec.head_dim // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE
    if padded != spec.head_dim:
        query, key, value = (
            _padded(torch, each, each.count * padded / spec.head_dim) for each in (query, key, value)
        )
    _call_by_pieces(torch, view)
    out = torch.like(query, "flash_attention", cost=fused_cost(view, "flash", PRODUCTS))
    statistics = torch.new(Unit.TOKENS, spec.n_heads, "fp32", "flash_attention", cost=None)
    shapes = [_shape(each) for each in (query, key, value)]

    def backward(*_: object) -> list[Tensor | None]:
        return _flash_gradients(torch, view, shapes, padded)

    out = record(torch, out, [query, key, value], [query, key, value, out, statistics], backward)
    if padded != spec.head_dim:
        out = torch.part(out, spec.n_heads * spec.head_dim)
        out.head_by_head = True
    return out


def _flash_gradients(
    torch: Operators, view: LayerView, shapes: list[Tensor], width: int
) -> list[Tensor | None]:
    """``mha_bwd``: row sums, an accumulator of the query's gradient,
    key and value gradients of all heads, and results.
    """
    spec, op = view.block.attention, "flash_attention_backward"
    _call_by_pieces(torch, view)
    torch.pay(fused_cost(view, "flash", BACKWARD_PRODUCTS))
    unit, rows = _rows_at_once(view)
    _work = flash_workspace(torch, width, (unit, rows * spec.n_heads), op)
    if spec.n_kv_heads != spec.n_heads and spec.sdpa_input == "grouped":
        n_keys = view.recipe.parallel.context
        _work += [
            torch.new(Unit.TOKENS, n_keys * spec.n_heads * width, shapes[0].dtype, op, cost=None)
            for _ in range(2)
        ]
    return [torch.like(shape, op, cost=None) for shape in shapes]


def flash_workspace(torch: Operators, width: int, rows: tuple[Unit, float], op: str) -> list[Tensor]:
    """Row sums and an accumulator of the query's gradient in fp32, of ``rows`` of single heads.

    The accumulator's heads are rounded to 32 features, above 192 to 256.  Ignored:
    rows rounded to 128 of each sample.
    """
    rounded = -(-width // 32) * 32 if width <= 192 else _FLASH_WIDEST
    return [torch.new(rows[0], rows[1] * count, "fp32", op, cost=None) for count in (1, rounded)]


def _call_by_pieces(torch: Operators, view: LayerView) -> None:
    """Launches beyond the first, where the code calls the kernel piece by piece.  Ignored:
    several images of one sample.
    """
    spec = view.block.attention
    if view.recipe.attention == "sdpa" and spec.pieces != "none":
        unit, each = (Unit.ROWS, 1.0)
        if spec.pieces != "image" and spec.window_tokens:
            unit, each = Unit.TOKENS, 1 / spec.window_tokens
        torch.spend("launches", unit, each)


def _rows_at_once(view: LayerView) -> tuple[Unit, float]:
    """Rows that one call of a kernel sees: all, or those of one piece."""
    spec = view.block.attention
    if view.recipe.attention != "sdpa" or spec.pieces == "none":
        return Unit.TOKENS, 1
    return (Unit.IMAGE_PATCHES, 1) if spec.pieces == "image" else (Unit.ONE, spec.window_tokens or 1)


def _padded(torch: Operators, x: Tensor, count: float) -> Tensor:
    """``pad`` of the last dimension; the gradient is copied without what was added."""
    out = torch.new(x.unit, count, x.dtype, "pad", cost=[x])
    out.head_by_head = True
    unit, before = x.unit, x.count

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        narrow = torch.new(unit, before, gradient.dtype, "pad_backward", cost=[gradient])
        narrow.head_by_head = True
        return [narrow]

    return record(torch, out, [x], [], backward)


def _efficient(
    torch: Operators, view: LayerView, inputs: tuple[Tensor, Tensor, Tensor], bias: Tensor | None
) -> Tensor:
    """The memory-efficient kernel: saves its inputs, the mask,
    the output and one fp32 number for each row and head.

    Backward: row sums, and an fp32 accumulator of the query's gradient in tiles,
    each with a lock of 16 bytes.
    Source: cuda/mem_eff_attention/kernel_backward.h ``workspace_elements_gq``, ``GradQTempStorage``.
    """
    spec, op = view.block.attention, "efficient_attention"
    pairs: Pairs = "triangle" if bias is None else "square"
    out = torch.new(
        Unit.TOKENS, spec.out_width, inputs[0].dtype, op, cost=fused_cost(view, "efficient", PRODUCTS, pairs)
    )
    statistics = torch.new(Unit.TOKENS, spec.n_heads, "fp32", op, cost=None)
    width = spec.head_dim
    rows = 64 if width <= 64 or width > 128 else 128
    columns = next((columns for columns in _TILE_COLUMNS if width <= columns), 64)
    tiled = -(-width // columns) * (columns + 4 / rows)
    shapes = [_shape(each, together=True) for each in inputs]

    def backward(*_: object) -> list[Tensor | None]:
        torch.pay(fused_cost(view, "efficient", BACKWARD_PRODUCTS, pairs))
        _work = [torch.new(Unit.TOKENS, spec.n_heads * count, "fp32", op, cost=None) for count in (1, tiled)]
        return [torch.like(shape, op, cost=None) for shape in shapes]

    masks = [] if bias is None else [bias]
    return record(torch, out, inputs, [*inputs, *masks, out, statistics], backward)


def fused_cost(
    view: LayerView, kernel: Literal["flash", "efficient"], products: int, pairs: Pairs = "triangle"
) -> Multiplies:
    """One call over all heads: so many ``products`` for each pair of a query and a key.

    FlashAttention's package leaves pairs outside of a window out, and padding.
    """
    spec = view.block.attention
    width, window = (spec.head_dim + spec.value_head_dim) / 2, spec.window_tokens
    kind = FusedAttention(kernel, width, pairs)
    if spec.pieces != "none":
        kind = replace(kind, pairs="piece", window=window)
    elif ATTENTION_FACTS[view.recipe.attention].is_flash:
        kind = replace(kind, pairs="band", window=window)
    return Multiplies(kind, Unit.PAIRS, products * spec.n_heads * width)


def _shape(x: Tensor, *, together: bool = False) -> Tensor:
    """Size and layout alone; ``together``: rows of all heads lie together."""
    shape = Tensor(None, x.unit, x.count, x.dtype)
    shape.head_by_head = x.head_by_head and not together
    return shape


def _merged(torch: Operators, out: Tensor) -> Tensor:
    """``transpose(1, 2).contiguous()``: a copy where heads followed one another."""
    if not out.head_by_head:
        return out
    out = torch.contiguous(out)
    out.head_by_head = False
    return out


def _unfused(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention by single operators in fp32, with the heads of keys and values broadcast.

    Of one sample no head is copied for a product.  The probabilities are cast to be returned,
    though nobody reads them.
    Source: attention.cpp ``_scaled_dot_product_attention_math``.
    """
    spec, given = view.block.attention, query.dtype
    times = spec.n_heads // spec.n_kv_heads
    query, key, value = (torch.to(each, "fp32") for each in (query, key, value))
    scaled_query, scaled_key = torch.same(query, "mul"), torch.same(key, "mul")
    scores = _product(
        torch,
        (_batched(torch, view, scaled_query), _broadcast(torch, view, scaled_key, times)),
        Unit.PAIRS,
        spec.n_heads,
    )
    del scaled_key
    if view.masked:
        scores = torch.contiguous(scores, "add")
    scores = torch.softmax(scores)
    _returned = torch.like(scores, "to", given)
    out = _product(torch, (scores, _broadcast(torch, view, value, times)), Unit.TOKENS, spec.out_width)
    out = torch.to(_batched(torch, view, out, forward=False), given)
    out.head_by_head = True
    return out


def _product(torch: Operators, factors: tuple[Tensor, Tensor], unit: Unit, count: float) -> Tensor:
    """``bmm``: both factors are saved; the second one's gradient is made first."""
    shapes = [_shape(each) for each in factors]
    out = Tensor(None, unit, count, factors[0].dtype)
    macs = count if shapes[0].unit is Unit.PAIRS else shapes[0].count

    def cost(*operands: Tensor) -> Multiplies:
        return Multiplies(Product(out.dtype), Unit.PAIRS, macs, operands)

    def backward(*_: object) -> list[Tensor | None]:
        second = torch.like(shapes[1], "bmm", cost=cost(out, shapes[0]))
        return [torch.like(shapes[0], "bmm", cost=cost(out, shapes[1])), second]

    return record(
        torch, torch.new(unit, count, out.dtype, "bmm", cost=cost(*shapes)), factors, factors, backward
    )


def _batched(torch: Operators, view: LayerView, x: Tensor, *, forward: bool = True) -> Tensor:
    """``x`` as a batch of heads: copied in forward, or its gradient in backward,
    unless there is one sample.
    """
    if view.single:
        return x
    out = torch.like(x, "clone") if forward else x.alias()
    out.node = None
    return record(
        torch, out, [x], [], lambda _, gradient: [gradient if forward else torch.like(gradient, "clone")]
    )


def _broadcast(torch: Operators, view: LayerView, x: Tensor, times: int) -> Tensor:
    """Heads of keys or values for all queries: a copy, of one sample a view; their gradients are summed."""
    return (spread if view.single else repeat_kv)(torch, x, times)
