"""The kernels of attention: which one runs, what it saves, and what it takes while it runs.

Source: torch 2.13 ``ATen/native/transformers``: attention.cpp, cuda/sdp_utils.cpp,
cuda/flash_attn/flash_api.cpp, cuda/attention_backward.cu; transformers 5.23 integrations/sdpa_attention.py.
Ignored: rows of a mask of tokens padded to 16 keys; workspaces of key and value gradients above heads of 128
features.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from planner.domain.attention_shape import SdpaInput
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS, FLASH_WIDEST
from planner.program.head.inputs import MASK, has_mask
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Tensor, Unit
from planner.program.ops.work import FusedAttention, Multiplies, Product
from planner.program.view import LayerView
from planner.program.weights.matrices import autocast

_WIDTH_MULTIPLE = 8
# Rows and columns of the tiles in which the memory-efficient kernel sums up the query's gradient.
_TILE_COLUMNS = (32, 64, 96, 128)
Kernel = Literal["flash", "flex", "efficient", "math"]
Pairs = Literal["triangle", "square"]
PRODUCTS, BACKWARD_PRODUCTS = 2, 5
"""Products of a query's and a key's features, and of probabilities and values;
backward the scores once more, and four gradients.

Source: FlashAttention-2 (arXiv 2307.08691), algorithms 1 and 2.
"""


def fused_attention(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What attention's kernel returns, rows of all heads together."""
    masked, spec = has_mask(view), view.block.attention
    times = spec.n_heads // spec.n_kv_heads
    grouped = view.recipe.attention == "sdpa" and _sdpa_input(view) == "grouped" and times > 1
    if grouped and _repeats(view, masked=masked):
        is_view = spec.n_kv_heads == 1 and view.stack.copies_kv_heads != "all"
        repeat = spread if is_view else repeat_kv
        key, value = repeat(torch, key, times), repeat(torch, value, times)
    if view.stack.tells_samples(view.recipe) and not view.single:
        # ``transpose(1, 2).reshape(rows * length, ...)``
        query, key, value = (
            torch.contiguous(each, by_heads=False) if each.head_by_head else each
            for each in (query, key, value)
        )
    out = _attend(torch, view, query, key, value, masked=masked)
    if view.stack.copies_kv_heads == "joined" and view.has_flash and view.recipe.attention == "sdpa":
        out = _joined(torch, out)
    # ``transpose(1, 2).contiguous()``: a copy where heads followed one another.
    return torch.contiguous(out, by_heads=False) if out.head_by_head else out


def _joined(torch: Operators, out: Tensor) -> Tensor:
    """``torch.cat`` of what attention returned of each sample, whose gradients are views.

    Source: unsloth 2026.10.9 utils/attention_dispatch.py _sdpa_packed_segments.
    """
    return record(torch, torch.like(out, "cat"), [out], [], lambda _, gradient: [gradient])


def split_pieces(torch: Operators, x: Tensor) -> Tensor:
    """``torch.split``: views, whose gradients are joined.

    Source: transformers 5.23 models/qwen2_5_vl/modeling_qwen2_5_vl.py Qwen2_5_VLVisionAttention.forward.
    """
    return record(torch, x.alias(), [x], [], lambda _, gradient: [torch.like(gradient, "cat")])


def _attend(
    torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor, *, masked: bool
) -> Tensor:
    """One call of torch's operator, whose arguments autocast casts."""
    # The compiler evaluates the arguments of autocast's wrapper from the last to the first.
    value = autocast(torch, view, value)
    key = autocast(torch, view, key)
    query = autocast(torch, view, query)
    spec, kernel = view.block.attention, kernel_of(view, query, masked=masked)
    crops = kernel == "flash" and spec.value_head_dim != spec.head_dim
    if crops:
        # transformers 5.23 integrations/flash_attention.py: heads of values get the width of the keys'.
        value = pad_heads(torch, value, spec.n_kv_heads * spec.head_dim)
        value.head_by_head = False
    if kernel == "flash" and query.dtype == "fp32":
        # FlashAttention takes no fp32: inputs go back to the dtype of loading where norms made them wide.
        # transformers 5.23 modeling_flash_attention_utils.py fa_peft_integration_check.
        loaded = view.recipe.numerics.load_dtype
        query, key, value = (torch.to(each, loaded) for each in (query, key, value))
    if kernel == "math":
        return _unfused(torch, view, query, key, value)
    if kernel == "flex":
        return flex_attention(torch, view, query, key, value)
    if kernel == "efficient":
        return _efficient(torch, view, (query, key, value), _bias(torch, view, query) if masked else None)
    if view.unpads:
        key, value, query = (_real(torch, each) for each in (key, value, query))
    out = _flash(torch, view, query, key, value)
    out = _among_zeros(torch, out) if view.unpads else out
    if crops:
        out = torch.part(out, spec.out_width, by_heads=False)
        out.head_by_head = True
    return out


def _real(torch: Operators, x: Tensor) -> Tensor:
    """Rows of tokens that are no padding, picked by their numbers; the gradient lies among zeros.  Heads that
    do not lie token by token are copied before.

    Source: transformers 5.23 modeling_flash_attention_utils.py _upad_input, which each layer calls.
    """
    x = torch.contiguous(x, by_heads=False) if x.head_by_head else x
    unit, count = x.unit, x.count

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.new(unit, count, gradient.dtype, "new_zeros", cost=[gradient])]

    return record(torch, torch.new(Unit.REAL_TOKENS, count, x.dtype, "index", cost=[x]), [x], [], backward)


def _among_zeros(torch: Operators, x: Tensor) -> Tensor:
    """``_pad_input``: the way back."""
    unit, count = x.unit, x.count

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.new(unit, count, gradient.dtype, "index", cost=[gradient])]

    return record(torch, torch.new(Unit.TOKENS, count, x.dtype, "zeros", cost=[x]), [x], [], backward)


def kernel_of(view: LayerView, query: Tensor, *, masked: bool) -> Kernel:
    """The one asked for, or the first that takes the inputs: flash, memory-efficient, unfused.

    Cards before compute capability 8.0 have no FlashAttention, and no memory-efficient kernel in bf16.
    Source: ``select_sdp_backend``, ``check_flash_attention_hardware_support``,
    ``can_use_mem_efficient_attention``.
    """
    spec = view.block.attention
    if ATTENTION_FACTS[view.recipe.attention].is_flash:
        return "flex" if view.recipe.attention == "flex" else "flash"
    if view.stack.sdpa_kernel != "any":
        return view.stack.sdpa_kernel
    is_wide, is_shared = query.dtype == "fp32", spec.n_kv_heads != spec.n_heads
    one_for_all = _sdpa_input(view) == "broadcast" and is_shared
    flash_fits = spec.head_dim == spec.value_head_dim and spec.head_dim <= FLASH_WIDEST
    if flash_fits and view.has_flash and not (is_wide or masked or one_for_all):
        return "flash"
    if query.dtype == "bf16" and not view.has_flash:
        return "math"
    multiple = _WIDTH_MULTIPLE // 2 if is_wide else _WIDTH_MULTIPLE
    grouped = _sdpa_input(view) == "grouped" and is_shared and not _repeats(view, masked=masked)
    if one_for_all or grouped or spec.head_dim % multiple or spec.value_head_dim % multiple:
        return "math"
    return "efficient"


def _sdpa_input(view: LayerView) -> SdpaInput:
    """How keys and values are handed over: code that copies them leaves no head to be broadcast."""
    given = view.block.attention.sdpa_input
    copies = view.stack.copies_kv_heads in ("all", "joined")
    return "grouped" if given == "broadcast" and copies else given


def _repeats(view: LayerView, *, masked: bool) -> bool:
    """``use_gqa_in_sdpa``: a kernel takes fewer key heads where there is no mask and heads have one width.

    Source: transformers 5.23.
    """
    spec, stack = view.block.attention, view.stack
    wide = spec.head_dim != spec.value_head_dim or spec.head_dim > FLASH_WIDEST
    alone = {"wide": wide, "joined": not view.has_flash}
    copies = alone.get(stack.copies_kv_heads, stack.copies_kv_heads != "none")
    return masked or copies or stack.tells_samples(view.recipe)


def repeat_kv(torch: Operators, x: Tensor, times: int, *, by_heads: bool = True) -> Tensor:
    """Each head of keys or values copied ``times`` times; the gradients of the copies are summed,
    ``by_heads`` or as they lie.
    """
    out = torch.new(x.unit, x.count * times, x.dtype, "clone", cost=[x])
    out.head_by_head = True
    unit, count = x.unit, x.count

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        summed = torch.new(unit, count, gradient.dtype, "sum", cost=[gradient])
        summed.head_by_head = by_heads or gradient.head_by_head
        return [summed]

    return record(torch, out, [x], [], backward)


def spread(torch: Operators, x: Tensor, times: int) -> Tensor:
    """One head seen as many, which takes no copy; the gradients of all are summed."""
    out, unit, count = x.alias(), x.unit, x.count
    out.count = count * times

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.new(unit, count, gradient.dtype, "sum", cost=[gradient])]

    return record(torch, out, [x], [], backward)


def _bias(torch: Operators, view: LayerView, query: Tensor) -> Tensor | None:
    """The mask as the kernel reads it: additive, in the query's dtype; each layer makes a boolean one anew.

    Source: ``convert_boolean_attn_mask``, ``pad_bias``; a mask in the embeddings' dtype is cast by autocast.
    """
    if view.stack.sdpa_mask == "given":
        return torch.shared.get(MASK)
    spec = view.block.attention
    if view.stack.sdpa_mask == "stream" or spec.has_sloped_mask:
        same, masks = view.dtypes.table == query.dtype, spec.n_heads if spec.has_sloped_mask else 1
        mask = torch.shared.get(MASK) if same else torch.new(Unit.PAIRS, masks, query.dtype, "to")
        return torch.new(Unit.PAIRS, masks, query.dtype, "pad") if view.pads_mask else mask
    additive = torch.new(Unit.PAIRS, 1, query.dtype, "zeros_like")
    _inverted = torch.new(Unit.PAIRS, 1, "bool", "logical_not")
    return additive


def _flash(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """FlashAttention: saves query, key, value, output and one fp32 number for each row and head.

    Its output and gradients lie as its inputs do.  Widths of heads are padded to multiples of 8.
    """
    spec = view.block.attention
    padded = -(-spec.head_dim // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE
    if padded != spec.head_dim:
        query, key, value = (
            pad_heads(torch, each, each.count * padded / spec.head_dim) for each in (query, key, value)
        )
    _call_by_pieces(torch, view)
    out = torch.like(query, "flash_attention", cost=fused_cost(view, "flash", PRODUCTS))
    statistics = torch.new(query.unit, spec.n_heads, "fp32", "flash_attention", cost=None)
    shapes = [shape_of(each) for each in (query, key, value)]

    def backward(*_: object) -> list[Tensor | None]:
        return flash_gradients(torch, view, shapes, padded)

    out = record(torch, out, [query, key, value], [key, query, value, statistics, out], backward)
    if padded != spec.head_dim:
        out = torch.part(out, spec.n_heads * spec.head_dim)
        out.head_by_head = True
    return out


def flex_attention(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """FlexAttention, compiled: saves what FlashAttention does; masks are lists of blocks, too small to count.

    Transformers copies heads of keys where the number of a query's heads is no power of two.  Its output lies
    head by head.  Backward: row sums and the gradients.
    Source: transformers 5.23 integrations/flex_attention.py flex_attention_forward; torchtitan 0.3.0
    models/common/attention.py FlexAttention (``enable_gqa``); torch 2.13
    _inductor/kernel/flex/flex_attention.py.
    """
    spec, op = view.block.attention, "flash_attention"
    times = spec.n_heads // spec.n_kv_heads
    if view.stack.model_code != "own" and spec.n_heads & (spec.n_heads - 1) and times > 1:
        key, value = repeat_kv(torch, key, times), repeat_kv(torch, value, times)
    given = [_held(torch, view, each) for each in (query, key, value)]
    cost = fused_cost(view, "flash", PRODUCTS)
    out = torch.new(Unit.TOKENS, spec.out_width, query.dtype, op, cost=cost)
    out.head_by_head = True
    statistics = torch.new(Unit.TOKENS, spec.n_heads, "fp32", op, cost=None)
    shapes = [shape_of(each) for each in (query, key, value)]

    def backward(*_: object) -> list[Tensor | None]:
        torch.pay(fused_cost(view, "flash", BACKWARD_PRODUCTS))
        _sums = torch.new(Unit.TOKENS, spec.n_heads, "fp32", f"{op}_backward", cost=None)
        return [torch.like(shape, f"{op}_backward", cost=None) for shape in shapes]

    return record(torch, out, [query, key, value], [*given, out, statistics], backward)


def _held(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """What compiled attention saves of its input: a selective checkpoint that keeps what the compiled
    function returns keeps the tensors that it saves, which are among that.

    Source: torchtitan 0.3.0 models/common/attention.py FlexAttention (``wrap_inductor_compiled_regions``),
    distributed/activation_checkpoint.py (``inductor_compiled_code``); torch 2.13 utils/checkpoint.py
    _CachingTorchDispatchMode.
    """
    if torch.keeps is None or not torch.grad_enabled or view.stack.selective_flex != "saved":
        return x
    return torch.keeps("flash_attention", x.alias)


def flash_gradients(
    torch: Operators, view: LayerView, shapes: list[Tensor], width: int
) -> list[Tensor | None]:
    """``mha_bwd``: row sums, the query's gradient in fp32, those of all heads of keys and values, results."""
    spec, op = view.block.attention, "flash_attention_backward"
    _call_by_pieces(torch, view)
    torch.pay(fused_cost(view, "flash", BACKWARD_PRODUCTS))
    unit, rows = _rows_at_once(view)
    _work = flash_workspace(torch, width, (unit, rows * spec.n_heads), op)
    if shapes[1].count < shapes[0].count and spec.sdpa_input == "grouped":
        n_keys = spec.n_heads * width
        _work += [torch.new(shapes[1].unit, n_keys, shapes[0].dtype, op, cost=None) for _ in range(2)]
    return [torch.like(shape, op, cost=None) for shape in shapes]


def flash_workspace(torch: Operators, width: int, rows: tuple[Unit, float], op: str) -> list[Tensor]:
    """Row sums and the query's gradient in fp32, of ``rows`` of heads of features rounded to 32 or 256.

    Ignored: rows rounded to 128 of each sample.
    """
    rounded = -(-width // 32) * 32 if width <= 192 else FLASH_WIDEST
    return [torch.new(rows[0], rows[1] * count, "fp32", op, cost=None) for count in (1, rounded)]


def _call_by_pieces(torch: Operators, view: LayerView) -> None:
    """Launches beyond the first, where the kernel is called by pieces; images of a sample count as one."""
    spec = view.block.attention
    if view.recipe.attention == "sdpa" and spec.pieces != "none":
        of_window = spec.pieces != "image" and spec.window_tokens
        torch.spend("launches", *((Unit.TOKENS, 1 / of_window) if of_window else (Unit.ROWS, 1.0)))


def _rows_at_once(view: LayerView) -> tuple[Unit, float]:
    """Rows that one call of a kernel sees: all, or those of one piece."""
    spec = view.block.attention
    if view.unpads:
        return Unit.REAL_TOKENS, 1
    if view.recipe.attention != "sdpa" or spec.pieces == "none":
        return Unit.TOKENS, 1
    return (Unit.IMAGE_PATCHES, 1) if spec.pieces == "image" else (Unit.ONE, spec.window_tokens or 1)


def pad_heads(torch: Operators, x: Tensor, count: float) -> Tensor:
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
    """The memory-efficient kernel: saves inputs, mask, output and one fp32 number for each row and head.

    Backward: row sums, and the query's gradient in fp32 tiles, each with a lock of 16 bytes.
    Source: cuda/mem_eff_attention/kernel_backward.h ``workspace_elements_gq``, ``GradQTempStorage``.
    """
    spec, op = view.block.attention, "efficient_attention"
    pairs: Pairs = "triangle" if bias is None else "square"
    cost = fused_cost(view, "efficient", PRODUCTS, pairs)
    out = torch.new(Unit.TOKENS, spec.out_width, inputs[0].dtype, op, cost=cost)
    statistics = torch.new(Unit.TOKENS, spec.n_heads, "fp32", op, cost=None)
    width = spec.head_dim
    rows = 64 if width <= 64 or width > 128 else 128
    columns = next((columns for columns in _TILE_COLUMNS if width <= columns), 64)
    tiled = -(-width // columns) * (columns + 4 / rows)
    shapes = [Tensor(None, each.unit, each.count, each.dtype) for each in inputs]

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
    widths, window = (spec.head_dim, spec.value_head_dim), spec.window_tokens
    kind = FusedAttention(kernel, widths, pairs, backward=products == BACKWARD_PRODUCTS)
    if spec.pieces != "none":
        kind = replace(kind, pairs="piece", window=window)
    elif ATTENTION_FACTS[view.recipe.attention].is_flash:
        kind = replace(kind, pairs="band", window=window)
    return Multiplies(kind, Unit.PAIRS, products * spec.n_heads * kind.width)


def _unfused(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention by single operators in fp32: one head of keys for all is broadcast, of groups each is copied.

    Of one sample no head is copied for a product.  Probabilities are cast to be returned.
    Source: attention.cpp ``_scaled_dot_product_attention_math``, ``pre_process_group_query_attention_input``;
    torch 2.13 ATen/native/SoftMax.cpp ``_safe_softmax``.
    """
    spec, given = view.block.attention, query.dtype
    # Heads that the model's own code copied before are as many as those of the query.
    times = round(query.count / key.count)
    query, key, value = (torch.to(each, "fp32") for each in (query, key, value))
    scaled_query = torch.same(query, "mul")
    _mask = None if view.masked else _causal_mask(torch)
    _variables = (key, value)
    if times > 1 and _sdpa_input(view) == "grouped":
        key, value, times = repeat_kv(torch, key, times), repeat_kv(torch, value, times), 1
    scaled_key = torch.same(key, "mul")
    factors = (_batched(torch, view, scaled_query), _broadcast(torch, view, scaled_key, times))
    scores = _product(torch, factors, Unit.PAIRS, spec.n_heads)
    del factors
    del scaled_key
    torch.pay([scores], [scores])  # the mask is added in place
    shares = torch.softmax(scores)
    _mark_empty_rows(torch, scores, spec.n_heads)
    del scores
    _returned = shares if shares.dtype == given else torch.like(shares, "to", given)
    out = _product(torch, (shares, _broadcast(torch, view, value, times)), Unit.TOKENS, spec.out_width)
    out = torch.to(_batched(torch, view, out, forward=False), given)
    out.head_by_head = True
    return out


def _mark_empty_rows(torch: Operators, scores: Tensor, n_heads: int) -> None:
    """What is minus infinity, and rows that are nothing else."""
    marks = torch.like(scores, "isneginf", "bool")
    _rows = torch.new(Unit.TOKENS, n_heads, "bool", "all", cost=[marks])


def _causal_mask(torch: Operators) -> Tensor:
    """What ``is_causal`` means, as numbers that are added to the scores."""
    _all = torch.new(Unit.LENGTH_PAIRS, 1, "bool", "ones")
    _all = torch.new(Unit.LENGTH_PAIRS, 1, "bool", "tril")
    return torch.new(Unit.LENGTH_PAIRS, 1, "fp32", "where")


def _product(torch: Operators, factors: tuple[Tensor, Tensor], unit: Unit, count: float) -> Tensor:
    """``bmm``: both factors are saved; the second one's gradient is made first."""
    shapes = [shape_of(each) for each in factors]
    out = Tensor(None, unit, count, factors[0].dtype)
    macs = count if shapes[0].unit is Unit.PAIRS else shapes[0].count

    def cost(*operands: Tensor) -> Multiplies:
        return Multiplies(Product(out.dtype), Unit.PAIRS, macs, operands)

    def backward(*_: object) -> list[Tensor | None]:
        second = torch.like(shapes[1], "bmm", cost=cost(out, shapes[0]))
        return [torch.like(shapes[0], "bmm", cost=cost(out, shapes[1])), second]

    made = torch.new(unit, count, out.dtype, "bmm", cost=cost(*shapes))
    return record(torch, made, factors, factors, backward)


def _batched(torch: Operators, view: LayerView, x: Tensor, *, forward: bool = True) -> Tensor:
    """``x`` as a batch of heads: copied ``forward``, else its gradient, unless there is one sample."""
    if view.single:
        return x
    return torch.contiguous(x) if forward else torch.moved(x)


def _broadcast(torch: Operators, view: LayerView, x: Tensor, times: int) -> Tensor:
    """Heads of keys or values for all queries: a copy, of one sample a view; their gradients are summed.

    Heads that were copied for each query are a batch already.
    """
    if times == 1 and x.head_by_head:
        return x
    return (spread if view.single else repeat_kv)(torch, x, times)
