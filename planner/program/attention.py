"""Attention: projections to heads, their norms, rotary positions, the kernel, and the output projection.

Source: transformers 5.23 models/*/modeling_*.py, the ``forward`` of each attention module, integrations/sdpa_attention.py.
"""

from __future__ import annotations

from planner.program.activations import clamped
from planner.program.eager import eager
from planner.program.heads import by_heads, fused_projection, head_norm
from planner.program.kernels import fused_attention
from planner.program.latent import latent_heads
from planner.program.matrices import dropout, linear
from planner.program.operators import Operators
from planner.program.rotary import rotated
from planner.program.tensors import Tensor
from planner.program.view import LayerView


def attention(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """What attention adds to the stream, from the output ``x`` of the norm before it."""
    with torch.inside("self_attn"):
        query, key, value, _held = heads(torch, view, x)
        if view.recipe.attention == "eager":
            # The variables of attention's own function live until the output projection has run.
            out, _variables = eager(torch, view, query, key, value)
        else:
            out = fused_attention(torch, view, query, key, value)
            if view.block.attention.pieces != "none" and view.recipe.attention == "sdpa":
                # The list of pieces lives until attention returns.
                _held.append(out)
                out = torch.cat([out])
        out = linear(torch, view, view.linears("attn_out")[0], out)
        return dropout(torch, out) if view.block.dropouts and view.block.drops_inside else out


def heads(torch: Operators, view: LayerView, x: Tensor) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Query, key and value as the kernel gets them, and what else variables refer to until attention returns."""
    if view.linears("attn_latent_kv"):
        return latent_heads(torch, view, x)
    query, key, value, held = projections(torch, view, x)
    if view.block.attention.position == "rope":
        query, key, rest = rotated(torch, view, query, key)
        held += rest
    if view.block.attention.head_norms_turned:
        query = head_norm(torch, view, 0, query)
        key = head_norm(torch, view, 1, key)
    if view.block.attention.scales_turned_query:
        query = torch.same(query, "mul")
    return query, key, value, held


def projections(torch: Operators, view: LayerView, x: Tensor) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Query, key and value with their norms, and the fused product where a variable refers to it."""
    if view.block.attention.fused_qkv:
        return fused_projection(torch, view, x)
    spec = view.block.attention
    numbers = (spec.n_heads, spec.n_kv_heads, spec.n_kv_heads)
    norms = [each for each in view.block.norms if each.on == "heads"]
    whole, late = spec.heads_last and bool(norms), spec.head_norms_last or spec.head_norms_turned
    made: list[Tensor] = []
    for index, matrix in enumerate(view.linears("attn_in")):
        made.append(linear(torch, view, matrix, x))
        if spec.scales_query and not index:
            made[0] = torch.same(made[0], "mul")
        if whole:
            made[index] = head_norm(torch, view, index, made[index])
        if not spec.heads_last:
            made[index] = by_heads(torch, made[index], numbers[index])
        if not (whole or late):
            made[index] = head_norm(torch, view, index, made[index])
    made = [clamped(torch, each) if spec.clips_products else each for each in made]
    for index in range(3):
        if spec.heads_last:
            made[index] = by_heads(torch, made[index], numbers[index])
        if spec.head_norms_last:
            made[index] = head_norm(torch, view, index, made[index])
    query, key, value = made
    return query, key, value, []
