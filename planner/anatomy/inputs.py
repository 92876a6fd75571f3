"""The dtype of what each matrix reads."""

from __future__ import annotations

from planner.anatomy.activation import activation_bytes
from planner.anatomy.ledger import BlockView
from planner.domain.model import LinearSpec


def input_bytes(view: BlockView, linear: LinearSpec) -> int:
    """Bytes per element of the tensor that ``linear`` reads."""
    regime = view.regime
    if linear.reads in ("attn_in", "mlp_in", "head_in"):
        return regime.norm_out
    if linear.reads == "attn_out":
        return regime.compute
    if linear.reads == "mlp_mid":
        return view.expert_bytes if linear.group == "expert" else activation_bytes(view, regime.linear_out)[1]
    return regime.linear_out
