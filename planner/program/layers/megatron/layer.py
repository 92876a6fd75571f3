"""A decoder layer of Megatron-Core with modules of Transformer Engine: norms are part of the matrices behind
them, query, key and value are one matrix, gate and up another.

Packed samples are rows of one sequence, of which FlashAttention is told where each begins.
Source: megatron-core 0.16.1 transformer/transformer_layer.py, attention.py, mlp.py,
fusions/fused_bias_swiglu.py SwiGLUFunction, fused_bias_dropout.py.
Ignored: a selective checkpoint around attention's kernel (``core_attn``), which frees one number for each row
and head and runs the kernel again.
"""

from __future__ import annotations

from planner.domain.model import NormSpec
from planner.program.head.heads import split
from planner.program.layers.megatron.latents import latent_attention
from planner.program.layers.megatron.linears import fused_norm, linear, normed_linear
from planner.program.layers.megatron.mixture import gated, mixture
from planner.program.layers.megatron.positions import turned_heads
from planner.program.layers.megatron.te_exchange import by_te_exchange
from planner.program.layers.megatron.te_ring import by_te_ring
from planner.program.ops.kernels import fused_attention
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView


def megatron_layer(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """The stream after one layer; dropout of probability 0 is the tensor itself."""
    norms = [spec for spec in view.block.norms if spec.on == "hidden" for _ in range(spec.copies)]
    latents = view.linears("attn_latent_kv")
    x = torch.add(x, (latent_attention if latents else _attention)(torch, view, norms[0], x))
    return torch.add(x, _feed_forward(torch, view, norms[1], x))


def _attention(torch: Operators, view: LayerView, norm: NormSpec, x: Tensor) -> Tensor:
    with torch.inside("self_attention"):
        query, key, value = _heads(torch, view, norm, x)
        attend = fused_attention
        if view.recipe.parallel.context > 1:
            attend = by_te_exchange if view.stack.exchanges_heads else by_te_ring
        out = attend(torch, view, query, key, value)
        del query, key, value
        return linear(torch, view, view.linears("attn_out")[0], out)


def _heads(torch: Operators, view: LayerView, norm: NormSpec, x: Tensor) -> list[Tensor]:
    """Query, key and value: the query is copied out of the product, the value stays a view of it."""
    spec = view.block.attention
    mixed = normed_linear(torch, view, norm, view.linears("attn_in")[0], x)
    query, key, value = split(torch, mixed, (spec.q_width, spec.k_width, spec.v_width))
    del mixed
    if spec.n_kv_heads > 1:
        query = torch.contiguous(query, "reshape")
    norms = [each for each in view.block.norms if each.on == "heads"]
    if norms:
        query = fused_norm(torch, view, norms[0], query)
        key = fused_norm(torch, view, norms[1], torch.contiguous(key))
    if spec.position == "rope":
        query = turned_heads(torch, view, query)
        key = turned_heads(torch, view, key)
    return [query, key, value]


def _feed_forward(torch: Operators, view: LayerView, norm: NormSpec, x: Tensor) -> Tensor:
    with torch.inside("mlp"):
        if view.block.mlp.n_experts:
            return mixture(torch, view, fused_norm(torch, view, norm, x))
        middle = gated(torch, normed_linear(torch, view, norm, view.linears("mlp_in")[0], x))
        return linear(torch, view, view.linears("mlp_mid")[0], middle)
