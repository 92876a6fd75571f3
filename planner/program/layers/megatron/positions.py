"""Rotary positions as mcore-bridge turns heads by: one operator after the other, of all samples of a row.

Source: mcore-bridge 1.6.5 model/gpt_model.py _apply_rotary_pos_emb_bshd, patcher.py
_apply_rotary_pos_emb_thd.
"""

from __future__ import annotations

from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView


def turned_heads(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``cat(x * cos + rotated(x) * sin, rest)``, whose rest is empty; each call makes its tables anew."""
    cos, sin = _table(torch, view, "cos"), _table(torch, view, "sin")
    rest = torch.part(x, 0, by_heads=False)
    straight = torch.mul(x, cos)
    first, second = torch.part(x, x.count / 2), torch.part(x, x.count / 2)
    half = torch.cat([torch.same(second, "neg"), first])
    del first, second
    crossed = torch.mul(half, sin)
    del half
    x = torch.add(straight, crossed)
    del straight, crossed
    return torch.cat([x, rest])


def _table(torch: Operators, view: LayerView, op: str) -> Tensor:
    """Cosines or sines of every token, in fp32, scaled, and then in the dtype of the stream."""
    width = view.block.attention.rotary_width or view.block.attention.head_dim
    wide = torch.new(Unit.TOKENS, width, "fp32", op)
    scaled = torch.like(wide, "mul")
    del wide
    return torch.like(scaled, "to", view.dtypes.compute)
