"""Rotary positions: how the modelling code turns query and key, and what each way allocates.

Source: transformers 5.23 ``apply_rotary_pos_emb`` of
models/{llama,olmo2,glm,cohere,gpt_neox,phi3,gptj,gpt_oss}, ``forward`` of models/{phi,stablelm,gptj},
``apply_rotary_pos_emb_interleave`` of models/deepseek_v3, ``apply_rotary_emb`` of deepseek_v2; torchtune
0.5.0 modules/position_embeddings.py RotaryPositionalEmbeddings, models/llama3_1/_position_embeddings.py.
"""

from __future__ import annotations

from planner.domain.stack_values import RotaryModel
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.view import LayerView

COS, SIN = "cos", "sin"
_PAIRS: tuple[RotaryModel, ...] = ("pairs", "pairs_of_layers")


def rotated(
    torch: Operators, view: LayerView, query: Tensor, key: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Query and key with their positions, and what else variables refer to until attention returns."""
    spec = view.block.attention
    if view.stack.adapter_kernels == "compiled":
        # One kernel each way: inductor fuses pointwise operators.
        return torch.same(query, "rotary"), torch.same(key, "rotary"), []
    if view.stack.rotary_tables[0] in _PAIRS:
        return _by_pairs(torch, view, query), _by_pairs(torch, view, key), []
    if not (spec.joined_rotary or spec.rotary_width):
        return *turned(torch, view, query, key), []
    by_heads = spec.joined_rotary
    query_parts, key_parts = _cut(torch, view, query), _cut(torch, view, key)
    if spec.rotary_join == "inline":
        tables = _tables(torch, view)
        query = torch.cat([_turned(torch, query_parts[0], tables), query_parts[1]], by_heads=by_heads)
        return query, torch.cat([_turned(torch, key_parts[0], tables), key_parts[1]], by_heads=by_heads), []
    turned_query, turned_key = turned(torch, view, query_parts[0], key_parts[0])
    joined_query = torch.cat([turned_query, query_parts[1]], by_heads=by_heads)
    if spec.rotary_join == "forward":
        joined_key = torch.cat([turned_key, key_parts[1]], by_heads=by_heads)
        return joined_query, joined_key, [turned_query, turned_key, query_parts[1], key_parts[1]]
    # The variable of the turned part becomes that of the joined one.
    del turned_query
    return joined_query, torch.cat([turned_key, key_parts[1]], by_heads=by_heads), []


def turns(torch: Operators, view: LayerView) -> tuple[Tensor, Tensor]:
    """Cosines and sines of all positions, in the stream's dtype; of the complex form one table of both.

    Source: transformers 5.23 ``forward`` of LlamaRotaryEmbedding, GptOssRotaryEmbedding (angles of one half),
    DeepseekV2RotaryEmbedding and Llama4TextRotaryEmbedding (``torch.polar``).
    """
    spec = view.block.attention
    width = spec.rotary_width or spec.head_dim
    op = "mul" if "elementwise" in view.stack.rotary_in_model else "bmm"
    angles = torch.new(Unit.LENGTH, width / 2, "fp32", op, cost=None)
    if spec.rotary_form == "complex":
        _ones = torch.like(angles, "ones_like")
        numbers = torch.new(Unit.LENGTH, width, "fp32", "polar", cost=[angles])
        numbers = torch.same(numbers, "mul")
        return numbers, numbers
    if spec.rotary_form != "crossed":
        halves = angles
        angles = torch.new(Unit.LENGTH, width, "fp32", "cat", cost=[halves])
    cos = torch.same(torch.like(angles, "cos"), "mul")
    sin = torch.same(torch.like(angles, "sin"), "mul")
    return torch.to(cos, _dtype(view)), torch.to(sin, _dtype(view))


def _dtype(view: LayerView) -> Dtype:
    """The dtype of tables: the stream's before the first layer, unless results are cast back."""
    spec = view.block.attention
    casts_back = spec.rotary_result in ("input", "floated")
    return "fp32" if casts_back or (spec.widened_tables and view.dtypes.autocast) else view.embedded


def _tables(torch: Operators, view: LayerView) -> tuple[Tensor, Tensor]:
    """Cosines and sines as products read them: those of the model, or too small to count; some repeat them in
    each layer.
    """
    spec = view.block.attention
    width = spec.rotary_width or spec.head_dim
    if spec.rotary_form == "repeated_pairs":
        cos = torch.new(Unit.LENGTH, width, _dtype(view), "repeat_interleave")
        return cos, torch.new(Unit.LENGTH, width, _dtype(view), "repeat_interleave")
    is_half = spec.rotary_form in ("crossed", "crossed_views")
    uncounted = Tensor(None, Unit.LENGTH, width / 2 if is_half else width, _dtype(view))
    cos, sin = torch.shared.get(COS, uncounted), torch.shared.get(SIN, uncounted)
    return torch.part(cos, uncounted.count), torch.part(sin, uncounted.count)


def turned(torch: Operators, view: LayerView, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Both turned whole."""
    spec = view.block.attention
    if spec.rotary_form == "complex":
        return _complex(torch, view, query, key)
    given, tables = (query.dtype, key.dtype), _tables(torch, view)
    if spec.rotary_result == "fp32":
        query, key = torch.to(query, "fp32"), torch.to(key, "fp32")
    if spec.rotary_form in ("crossed", "crossed_views"):
        turned_query, turned_key = _crossed(torch, query, key, tables)
    else:
        floated = spec.rotary_result == "floated"
        turned_query = _turned(torch, query, tables, floated=floated)
        turned_key = _turned(torch, key, tables, floated=floated)
    if spec.rotary_result == "wider":
        return turned_query, turned_key
    narrow = torch.to(turned_query, given[0])
    return narrow, torch.to(turned_key, given[1])


def turned_query(torch: Operators, view: LayerView, query: Tensor) -> Tensor:
    """The query alone, of a layer that takes keys from another."""
    return _turned(torch, query, _tables(torch, view))


def _turned(torch: Operators, x: Tensor, tables: tuple[Tensor, Tensor], *, floated: bool = False) -> Tensor:
    """``x * cos + rotate_half(x) * sin``; it makes no difference whether halves or pairs are swapped.

    ``floated``: both factors are cast to fp32 for their products.
    """
    cos, sin = tables
    straight = torch.mul(torch.to(x, "fp32") if floated else x, cos)
    first, second = torch.part(x, x.count / 2), torch.part(x, x.count / 2)
    half = torch.cat([torch.same(second, "neg"), first])
    del first, second
    if floated:
        half = torch.to(half, "fp32")
    crossed = torch.mul(half, sin)
    del half
    return torch.add(straight, crossed)


def _crossed(
    torch: Operators, query: Tensor, key: Tensor, tables: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """``cat([first * cos - second * sin, second * cos + first * sin])``."""
    cos, sin = tables
    halves = [(torch.part(x, x.count / 2), torch.part(x, x.count / 2)) for x in (query, key)]
    made = []
    for first, second in halves:
        one = torch.sub(torch.mul(first, cos), torch.mul(second, sin))
        other = torch.add(torch.mul(second, cos), torch.mul(first, sin))
        made.append(torch.cat([one, other], by_heads=True))
        del one, other
    return made[0], made[1]


def _complex(torch: Operators, view: LayerView, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """``view_as_real(view_as_complex(x.float()) * table).type_as(x)``."""
    width = view.block.attention.rotary_width or view.block.attention.head_dim
    table = torch.shared.get(COS) or Tensor(None, Unit.LENGTH, width, "fp32")
    wide_query, wide_key = torch.to(query, "fp32"), torch.to(key, "fp32")
    if view.block.attention.rotary_result == "fp32":
        # Both products are there before one is cast.
        products = torch.mul(wide_query, table), torch.mul(wide_key, table)
        narrow = torch.to(products[0], query.dtype)
        return narrow, torch.to(products[1], key.dtype)
    turned_query = torch.to(torch.mul(wide_query, table), query.dtype)
    return turned_query, torch.to(torch.mul(wide_key, table), key.dtype)


def _by_pairs(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``stack([first * cos - second * sin, second * cos + first * sin])`` of ``x`` in fp32, cast back.

    Each of the four products takes a view of its own of every other feature.
    Ignored: that memory is read in pieces which hold the other features, too.
    """
    wide = torch.to(x, "fp32")
    table = Tensor(None, Unit.LENGTH, view.block.attention.head_dim / 2, "fp32")

    def product() -> Tensor:
        return torch.mul(torch.part(wide, x.count / 2, by_heads=False), table)

    turned_pairs = [torch.sub(product(), product()), torch.add(product(), product())]
    return torch.to(torch.cat(turned_pairs), x.dtype)


def _cut(torch: Operators, view: LayerView, x: Tensor) -> tuple[Tensor, Tensor]:
    """The part that is turned, and the part that is not, which may be empty."""
    spec = view.block.attention
    count = x.count * (spec.rotary_width or spec.head_dim) / spec.head_dim
    # A slice of all features is an alias, which has a node: torch/csrc/autograd/python_variable_indexing.cpp.
    first = torch.reshaped(x) if count == x.count else torch.part(x, count)
    return first, torch.part(x, x.count - count)
