"""Multi-head latent attention: queries, keys and values expanded from compressed products.

Source: transformers 5.23 models/{deepseek_v2,deepseek_v3,mistral4}/modeling_*.py, ``forward`` and
``expand_kv`` of the attention modules; torch 2.13 autograd/functions/tensor.cpp ``CopySlices``.
"""

from __future__ import annotations

from planner.program.head.heads import Heads, by_heads, split
from planner.program.layers.norms import norm
from planner.program.layers.rotary import turned
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView
from planner.program.weights.matrices import linear


def latent_heads(torch: Operators, view: LayerView, x: Tensor) -> Heads:
    """Query, key and value for every head."""
    spec = view.block.attention
    turned_width, plain_width = spec.rotary_width, spec.head_dim - spec.rotary_width
    norms = [each for each in view.block.norms if each.on == "latent"]
    inputs = view.linears("attn_in")
    query = linear(torch, view, inputs[0], x)
    if view.linears("attn_latent_q"):
        query = norm(torch, view, norms[0], query, "q_a_layernorm")
        query = linear(torch, view, view.linears("attn_latent_q")[0], query)
    query = by_heads(torch, query, spec.n_heads)
    widths = (spec.n_heads * plain_width, spec.n_heads * turned_width)
    query_plain, query_turned = split(torch, query, widths, laid_by_heads=True)
    compressed = linear(torch, view, inputs[1], x)
    latent, key_turned = split(torch, compressed, (inputs[1].out_features - turned_width, turned_width))
    latent = norm(torch, view, norms[-1], latent, "kv_a_layernorm")
    query_turned, key_turned = turned(torch, view, query_turned, key_turned)
    joined = torch.cat([query_plain, query_turned], by_heads=True)
    if spec.scales_turned_query:
        joined = torch.same(joined, "mul")
    key, value = _expanded(torch, view, latent, key_turned)
    return joined, key, value, [query, query_turned, compressed, latent, key_turned]


def _expanded(torch: Operators, view: LayerView, latent: Tensor, key_turned: Tensor) -> tuple[Tensor, Tensor]:
    """``expand_kv``: the latents' product split by heads, and its keys copied beside the turned part."""
    spec = view.block.attention
    product = by_heads(torch, linear(torch, view, view.linears("attn_latent_kv")[0], latent), spec.n_heads)
    plain_width = spec.n_heads * (spec.head_dim - spec.rotary_width)
    key_plain, value = split(torch, product, (plain_width, spec.out_width), laid_by_heads=True)
    return _key_of(torch, view, key_plain, key_turned), value


def _key_of(torch: Operators, view: LayerView, plain: Tensor, turned_part: Tensor) -> Tensor:
    """``new_empty`` into which both parts are copied.

    Backward: each copy makes the whole gradient again and cuts its part out; the second also fills in zeros.
    """
    spec = view.block.attention
    every = record(torch, turned_part.alias(), [turned_part], [], lambda _, gradient: [gradient])
    every.count *= spec.n_heads
    key = torch.new(plain.unit, spec.q_width, plain.dtype, "new_empty", cost=[plain, every])
    key.head_by_head = True
    counts = plain.count, every.count

    def of_plain(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        _whole = torch.like(gradient, "new_empty_strided")
        return [torch.new(gradient.unit, counts[0], gradient.dtype, "clone")]

    def of_turned(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        whole = torch.like(gradient, "new_empty_strided")
        part = torch.new(gradient.unit, counts[1], gradient.dtype, "clone")
        _zeros = torch.like(part, "zeros_like")
        return [whole, part]

    record(torch, key, [plain], [], of_plain)
    filled = key.alias()
    return record(torch, filled, [key, every], [], of_turned)
