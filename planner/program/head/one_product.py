"""LitGPT's query, key and value: one matrix, and one branch of LoRA for those of the three that are adapted.

Source: litgpt 0.5.13 model.py CausalSelfAttention.forward, lora.py LoRAQKVLinear.forward and ``zero_pad``;
torch 2.13 tools/autograd/derivatives.yaml ``index_copy``, which saves its source.
Ignored: that the weights, and the branch's two products, are one tensor each.
"""

from __future__ import annotations

from dataclasses import replace

from planner.domain.model import LinearSpec
from planner.program.head.heads import Heads, by_heads, head_norm, split
from planner.program.ops.autograd import record
from planner.program.ops.casts import autocast, rows_of
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.lora import dropped, factors, times
from planner.program.weights.matrices import base_product


def is_one_product(view: LayerView) -> bool:
    """Whether three products would keep other bytes: not in full where keys are shared, and copied."""
    spec = view.block.attention
    return spec.one_product and (view.recipe.adapter is not None or spec.n_kv_heads == spec.n_heads)


def one_product(torch: Operators, view: LayerView, x: Tensor) -> Heads:
    """Views of one product: a value that no query shares keeps all of it until backward."""
    matrices, spec = view.linears("attn_in"), view.block.attention
    joined = replace(matrices[0], out_features=sum(each.out_features for each in matrices))
    with torch.inside(joined.name):
        whole = base_product(torch, view, joined, x)
    if adapted := [each for each in matrices if view.adapted(each)]:
        with torch.counted_as("adapters"):
            branch = _padded(torch, _branch(torch, view, adapted, x), whole, len(adapted) == len(matrices))
            whole = torch.add(whole, torch.same(branch, "mul"))
    parts = split(torch, whole, (spec.q_width, spec.k_width, spec.v_width))
    numbers = (spec.n_heads, spec.n_kv_heads, spec.n_kv_heads)
    normed = [head_norm(torch, view, index, part) for index, part in enumerate(parts)]
    query, key, value = (by_heads(torch, part, n) for part, n in zip(normed, numbers, strict=True))
    return query, key, value, []


def _branch(torch: Operators, view: LayerView, adapted: list[LinearSpec], x: Tensor) -> Tensor:
    """``B(A(dropout(x)))`` of the adapted ones, joined."""
    rows, outs, seen = rows_of(adapted[0], x), list[Tensor](), autocast(torch, view, dropped(torch, view, x))
    for each in adapted:
        down, up = factors(torch, view, each)
        middle = times(torch, view, down, seen, (Unit.RANK_TOKENS, rows))
        outs.append(times(torch, view, up, middle, (x.unit, rows * each.out_features)))
    return torch.cat(outs) if len(outs) > 1 else outs[0]


def _padded(torch: Operators, branch: Tensor, whole: Tensor, is_whole: bool) -> Tensor:
    """The branch among zeros, where not all three are adapted."""
    if is_whole:
        return branch
    zeros, source = torch.new(whole.unit, whole.count, branch.dtype, "index_copy_"), shape_of(branch)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.like(source, "index_select", cost=(gradient,))]

    return record(torch, zeros, [branch], [branch], backward)
