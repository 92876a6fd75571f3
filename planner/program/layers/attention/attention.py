"""Attention: projections to heads, their norms, rotary positions, the kernel, and the output projection.

Source: transformers 5.23 models/*/modeling_*.py, the ``forward`` of each attention module,
integrations/sdpa_attention.py.
"""

from __future__ import annotations

from dataclasses import replace

from planner.domain.recipes.attention_kernels import ATTENTION_FACTS
from planner.program.head.generation import cached, copied
from planner.program.head.heads import Heads, by_heads, fused_projection, head_norm, split
from planner.program.head.one_product import is_one_product, one_product
from planner.program.layers.activations import clamped
from planner.program.layers.attention.eager import eager
from planner.program.layers.attention.exchanged_heads import by_exchanged_heads, by_exchanged_parts
from planner.program.layers.attention.gathered_heads import by_gathered_heads
from planner.program.layers.attention.latent import latent_heads
from planner.program.layers.attention.ring import by_ring
from planner.program.layers.rotary import rotated, turned_query
from planner.program.ops.collectives import gathered, gathered_keys
from planner.program.ops.kernels import flex_attention, fused_attention, split_pieces
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.matrices import dropout, linear


def by_gathered_keys(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """FlexAttention over the keys of the whole sequence, which are arguments of the kernel alone.

    Source: torchtitan 0.3.0 models/common/decoder_sharding.py set_gqa_inner_attention_local_map.
    """
    out = flex_attention(torch, view, query, *(gathered_keys(torch, view, each) for each in (key, value)))
    return torch.contiguous(out, by_heads=False)


_DIVIDED = {
    "features": by_exchanged_heads,
    "exchanged_heads": by_exchanged_parts,
    "gathered_heads": by_gathered_heads,
    "tokens": by_gathered_keys,
}
"""Attention over a sequence that GPUs divide, by how their stack does it."""


def attention(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """What attention adds to the stream, from the output ``x`` of the norm before it."""
    with torch.inside("self_attn"):
        query, key, value, held = heads(torch, view, gathered(torch, view, x))
        if view.block.attention.lends_keys and torch.direction == "again":
            # The layers before refer to the dictionary of what is lent, until their own second runs end.
            torch.outputs += [key, value]
        key, value = _cached(torch, view, [key, value])
        pieces = view.block.attention.pieces != "none" and not ATTENTION_FACTS[view.recipe.attention].is_flash
        if pieces:
            query, key, value = (split_pieces(torch, each) for each in (query, key, value))
        if view.recipe.attention == "eager":
            # The variables of attention's own function live until the output projection has run.
            out, _variables = eager(torch, view, query, key, value)
            if view.block.sums_inside == "both":
                torch.summed += [query, key, value, *held, *_variables]
        elif view.recipe.parallel.context > 1:
            by_gpus = by_ring if view.in_ring else _DIVIDED[view.stack.model_parallel]
            out = by_gpus(torch, view, query, key, value)
        else:
            out = fused_attention(torch, view, query, key, value)
        if pieces:
            # The list of pieces lives until attention returns.
            held.append(out)
            out = torch.cat([out])
        if view.block.attention.output_gate == "behind":
            gate = view.linears("attn_in")[-1]
            out = torch.mul(out, torch.kernel(linear(torch, view, gate, x), "sigmoid", saves="output"))
        elif view.block.attention.output_gate != "none":
            out = torch.mul(out, torch.kernel(held[0], "sigmoid", saves="output"))
        out = linear(torch, view, view.linears("attn_out")[0], out)
        return dropout(torch, out) if view.block.dropouts and view.block.drops_inside else out


def _cached(torch: Operators, view: LayerView, new: list[Tensor]) -> list[Tensor]:
    """Keys and values as they are in a cache, where there is one; ``new`` is emptied then."""
    if torch.caches:
        return list(cached(torch, view, new))
    copies = view.stack.caches_keys and not view.recipe.gradient_checkpointing
    return copied(torch, new) if copies else new


def heads(torch: Operators, view: LayerView, x: Tensor) -> Heads:
    """Query, key and value with their positions."""
    if view.linears("attn_latent_kv"):
        return latent_heads(torch, view, x)
    make = one_product if is_one_product(view) else projections
    query, key, value, held = make(torch, view, x)
    if any(each.scaling == "turned" for each in view.block.norms):
        return query, key, value, held
    if view.block.attention.borrows_keys:
        query = turned_query(torch, view, query)
    elif view.block.attention.position == "rope":
        query, key, rest = rotated(torch, view, query, key)
        held += rest
    if view.block.attention.head_norms_turned:
        query = head_norm(torch, view, 0, query)
        key = head_norm(torch, view, 1, key)
    if view.block.attention.scales_turned_query:
        query = torch.same(query, "mul")
    if view.block.attention.scales_query_in_fp32:
        query = torch.to(torch.mul(query, Tensor(None, Unit.LENGTH, 1, "fp32")), query.dtype)
    return query, key, value, held


def projections(torch: Operators, view: LayerView, x: Tensor) -> Heads:
    """Query, key and value with their norms; a variable refers to the fused product or the output's gate."""
    if view.block.attention.fused_qkv:
        return fused_projection(torch, view, x)
    spec = view.block.attention
    numbers = (spec.n_heads, spec.n_kv_heads, spec.n_kv_heads)
    norms = [each for each in view.block.norms if each.on == "heads"]
    whole, late = spec.heads_last and bool(norms), spec.head_norms_last or spec.head_norms_turned
    made: list[Tensor] = []
    gates: list[Tensor] = []
    n_made = len(numbers) + (spec.output_gate == "matrix")
    for index, matrix in enumerate(view.linears("attn_in")[:n_made]):
        if index == len(numbers):
            gates.append(linear(torch, view, matrix, x))
            break
        made.append(linear(torch, view, matrix, x))
        if (spec.scales_query and not spec.head_norms_last, spec.scales_key, False)[index]:
            made[index] = torch.same(made[index], "mul")
        if whole:
            made[index] = head_norm(torch, view, index, made[index])
        if spec.output_gate == "query" and not index:
            gates.append(_cut_off_gate(torch, made))
        elif not spec.heads_last:
            made[index] = by_heads(torch, made[index], numbers[index])
        if spec.key_is_value and index == 1:
            # The same tensor under another name.
            made.append(replace(made[1]))
        if not (whole or late):
            made[index] = head_norm(torch, view, index, made[index])
    _add_missing(torch, view, made)
    query, key, value = _as_heads(torch, view, made)
    return query, key, value, gates


def _add_missing(torch: Operators, view: LayerView, made: list[Tensor]) -> None:
    """Keys and values of a layer before, which are counted there; the norm of a value that is the key."""
    spec = view.block.attention
    if spec.borrows_keys:
        widths = (spec.k_width, spec.v_width)
        made += [Tensor(None, Unit.TOKENS, width, made[0].dtype) for width in widths]
    if spec.key_is_value:
        made[2] = head_norm(torch, view, 2, made[2])


def _cut_off_gate(torch: Operators, made: list[Tensor]) -> Tensor:
    """The second half of the query's product, copied; the first one stays."""
    made[0], gate = split(torch, made[0], (made[0].count / 2, made[0].count / 2))
    return torch.contiguous(gate)


def _as_heads(torch: Operators, view: LayerView, made: list[Tensor]) -> list[Tensor]:
    """What is done to the products when all three are there, in ``made`` itself, which alone keeps them."""
    spec = view.block.attention
    if spec.clips_products:
        for index in range(3):
            made[index] = clamped(torch, made[index])
    for index, number in enumerate((spec.n_heads, spec.n_kv_heads, spec.n_kv_heads)):
        if spec.heads_last:
            made[index] = by_heads(torch, made[index], number)
        if spec.head_norms_last:
            made[index] = head_norm(torch, view, index, made[index])
            if spec.scales_query and not index:
                made[0] = torch.same(made[0], "mul")
    return made
