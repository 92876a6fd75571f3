"""Products of a layer seen as heads: views, and what their gradients cost."""

from __future__ import annotations

from collections.abc import Sequence

from planner.program.layers.activations import clamped
from planner.program.layers.norms import norm
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators, part_of
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView
from planner.program.weights.matrices import linear

Heads = tuple[Tensor, Tensor, Tensor, list[Tensor]]
"""Query, key and value as the kernel gets them, and what else variables refer to until attention returns."""


def by_heads(torch: Operators, x: Tensor, n_heads: int) -> Tensor:
    """``view(...).transpose(1, 2)``: the gradient is copied where it lies head by head."""

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.like(gradient, "clone") if gradient.head_by_head and n_heads > 1 else gradient]

    return record(torch, x.alias(), [x], [], backward)


def fused_projection(torch: Operators, view: LayerView, x: Tensor) -> Heads:
    """Query, key and value out of one product, in the way of the modelling code.

    Source: models/{gpt2,mpt,gpt_neox,phi3,bloom,falcon}.  Gradients of slices are zeros as large as the
    product, those of one split are joined.
    """
    spec = view.block.attention
    counts = (spec.q_width, spec.k_width, spec.v_width)
    whole = linear(torch, view, view.linears("attn_in")[0], x)
    if spec.clips_products:
        whole = clamped(torch, whole, in_place=False)
    if spec.fused_parts == "split":
        parts = [head_norm(torch, view, index, x) for index, x in enumerate(split(torch, whole, counts))]
        query, key, value = (by_heads(torch, part, spec.n_heads) for part in parts)
        return query, key, value, []
    if spec.fused_parts == "split_heads":
        parts = split(torch, by_heads(torch, whole, spec.n_heads), counts, laid_by_heads=True)
    elif spec.fused_parts == "unbound":
        parts = split(torch, torch.moved(whole), counts)
    elif spec.fused_parts == "indexed":
        parts = _indexed(torch, view, whole)
    else:
        parts = [torch.part(whole, count, by_heads=False) for count in counts]
    if spec.fused_parts == "slices":
        numbers = (spec.n_heads, spec.n_kv_heads, spec.n_kv_heads)
        parts = [by_heads(torch, part, n) for part, n in zip(parts, numbers, strict=True)]
    query, key, value = (head_norm(torch, view, index, part) for index, part in enumerate(parts))
    return query, key, value, [whole]


def split(
    torch: Operators, x: Tensor, counts: Sequence[float], *, laid_by_heads: bool = False
) -> list[Tensor]:
    """``x.split(...)``: views; their gradients are joined when all are there."""
    arrived: list[Tensor] = []
    unit, count = x.unit, x.count

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        del gradient
        joined = torch.new(unit, count, arrived[0].dtype, "cat", cost=arrived)
        joined.head_by_head = laid_by_heads
        arrived.clear()
        return [joined]

    def keep(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        arrived.append(gradient)
        # One node: its gradients come without sums.
        return [Tensor(None, unit, count, gradient.dtype) if len(arrived) == 1 else None]

    whole = record(torch, x.alias(), [x], [], backward)
    return [record(torch, part_of(whole, count), [whole], [], keep) for count in counts]


def _indexed(torch: Operators, view: LayerView, whole: Tensor) -> list[Tensor]:
    """Falcon with shared keys: ``[-2]`` and ``[-1]`` copy them; several are copied for all heads, as queries.

    Source: models/falcon/modeling_falcon.py ``_split_heads``.
    """
    spec = view.block.attention
    query = torch.part(whole, spec.q_width, by_heads=False)
    key, value = torch.index(whole, spec.k_width), torch.index(whole, spec.v_width)
    if spec.sdpa_input != "expanded":
        return [query, key, value]
    copied = torch.contiguous(query), _copied(torch, key, spec.q_width)
    return [*copied, _copied(torch, value, spec.out_width)]


def _copied(torch: Operators, x: Tensor, count: float) -> Tensor:
    """Shared heads copied for all queries; their gradients are summed."""
    out = torch.new(x.unit, count, x.dtype, "clone", cost=[x])
    return record(torch, out, [x], [], lambda _, gradient: [gradient])


def head_norm(torch: Operators, view: LayerView, index: int, x: Tensor) -> Tensor:
    """The norm of queries (0), keys (1) or values (2), if there is one."""
    specs = [each for each in view.block.norms if each.on == "heads"]
    if index >= len(specs):
        return x
    return norm(torch, view, specs[index], x, ("q_norm", "k_norm", "v_norm")[index])
