"""Multi-head latent attention of Megatron-Core, packed by mcore-bridge.

Compressing matrices are whole on each GPU, which multiplies its own tokens; the turned part of keys is
gathered.  Norms of latents are part of the matrices behind them, which want a latent without gaps.  Values
are padded to the width of keys, as FlashAttention wants heads of one width, and its output is cut again.
Source: mcore-bridge f020e479 patcher.py _patch_mla_attention; megatron-core 0.16.1
transformer/multi_latent_attention.py MLASelfAttention, transformer/attention.py
_checkpointed_attention_forward, models/gpt/gpt_layer_specs.py (``multi_latent_attention``);
TransformerEngine d0067d0d pytorch/module/base.py prepare_forward.
"""

from __future__ import annotations

from dataclasses import replace

from planner.domain.model import NormSpec
from planner.program.head.heads import split
from planner.program.layers.megatron.linears import fused_norm, linear, normed_linear
from planner.program.layers.megatron.matrix import gathered_rows
from planner.program.layers.megatron.positions import turned_heads
from planner.program.layers.megatron.te_ring import runs_again
from planner.program.ops.autograd import record
from planner.program.ops.kernels import PRODUCTS, flash_gradients, fused_attention, fused_cost, pad_heads
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView


def latent_attention(torch: Operators, view: LayerView, norm: NormSpec, x: Tensor) -> Tensor:
    """What attention adds to the stream."""
    spec = view.block.attention
    with torch.inside("self_attention"):
        x = fused_norm(torch, view, norm, x)
        query, key, value = _heads(torch, view, x)
        if spec.value_head_dim != spec.head_dim:
            value = pad_heads(torch, value, spec.q_width)
            view = replace(
                view, block=replace(view.block, attention=replace(spec, value_head_dim=spec.head_dim))
            )
        out = _attended(torch, view, query, key, value)
        del query, key, value
        if spec.value_head_dim != spec.head_dim:
            out = torch.contiguous(torch.part(out, spec.out_width, by_heads=False))
        return linear(torch, view, view.linears("attn_out")[0], out)


def _heads(torch: Operators, view: LayerView, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``get_query_key_value_tensors``, whose variables refer to products until it returns."""
    spec, inputs, latent_query = view.block.attention, view.linears("attn_in"), view.linears("attn_latent_q")
    norms = [each for each in view.block.norms if each.on == "latent"]
    query = linear(torch, view, inputs[0], x)
    combined = linear(torch, view, inputs[1], x)
    n_turned = combined.count * spec.rotary_width / inputs[1].out_features
    latent, key_turned = split(torch, combined, (combined.count - n_turned, n_turned))
    key_turned = gathered_rows(torch, key_turned, view.recipe.parallel.tensor)
    if latent_query:
        query = normed_linear(torch, view, norms[0], latent_query[0], query)
    product = normed_linear(
        torch, view, norms[-1], view.linears("attn_latent_kv")[0], torch.contiguous(latent)
    )
    plain = spec.n_heads * (spec.head_dim - spec.rotary_width)
    query_plain, query_turned = split(torch, query, (plain, spec.n_heads * spec.rotary_width))
    key_plain, value = split(torch, product, (plain, spec.out_width))
    query_turned = turned_heads(torch, view, _pairs_apart(torch, query_turned))
    key_turned = turned_heads(torch, view, _pairs_apart(torch, key_turned))
    query = torch.cat([query_plain, query_turned])
    key = torch.cat([key_plain, _of_all_heads(torch, key_turned, spec.n_heads)])
    return query, key, torch.contiguous(value)


def _pairs_apart(torch: Operators, x: Tensor) -> Tensor:
    """``cat(x[..., 0::2], x[..., 1::2])``."""
    return torch.cat([torch.part(x, x.count / 2, by_heads=False) for _ in range(2)])


def _of_all_heads(torch: Operators, x: Tensor, n_heads: int) -> Tensor:
    """``expand``: a view, whose gradients are summed."""
    shape = shape_of(x)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.like(shape, "sum", cost=(gradient,))]

    every = record(torch, x.alias(), [x], [], backward)
    every.count *= n_heads
    return every


def _attended(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The kernel, which runs again in backward where the job computes attention alone again."""
    if not runs_again(view):
        return fused_attention(torch, view, query, key, value)
    with torch.no_grad():
        out = fused_attention(torch, view, query, key, value)
    shapes, n_heads = [shape_of(each) for each in (query, key, value)], view.block.attention.n_heads

    def backward(*_: object) -> list[Tensor | None]:
        _again = torch.like(shapes[0], "flash_attention", cost=fused_cost(view, "flash", PRODUCTS))
        _statistics = torch.new(shapes[0].unit, n_heads, "fp32", "flash_attention", cost=None)
        return flash_gradients(torch, view, shapes, view.block.attention.head_dim)

    return record(torch, out, [query, key, value], [query, key, value], backward)
