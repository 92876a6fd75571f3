"""What the feed-forward part of a layer keeps for backward: activation, routing, the matrices around them."""

from __future__ import annotations

from planner.anatomy.ledger import BlockView, Step
from planner.anatomy.matrices import linear_step
from planner.domain.recipe import Number

# Tensors of intermediate width that an activation keeps when it is written in Python instead of one kernel:
# gelu_new keeps x, tanh(...), x/2 and 1 + tanh(...).  Source: transformers 5.23 activations.py NewGELUActivation.
_ACTIVATION_SAVES = {"gelu_new": 4, "gelu_fast": 4, "quick_gelu": 2}


def mlp_steps(view: BlockView, stream: Number) -> list[Step]:
    """The matrices of the feed-forward part, its routing and its activation, in forward order."""
    mlp, regime = view.block.mlp, view.regime
    lo = regime.linear_out
    saves = _ACTIVATION_SAVES.get(mlp.activation, 1)
    width = mlp.active_width
    copies = saves + 2 if mlp.gated else saves
    if view.stack.fused_mlp and mlp.gated:
        copies = 2
    steps = [linear_step(view, "mlp_in", stream)]
    if mlp.n_experts:
        steps.append(_routing_step(view, stream))
    # Gate, up and the activated gate are kept by the product; a plain MLP keeps what its activation needs.
    steps.append(Step("activation", width * lo * copies, stream + width * lo, stream + 3 * width * lo))
    steps.append(linear_step(view, "mlp_mid", stream))
    return steps


def _routing_step(view: BlockView, stream: Number) -> Step:
    """Routing: fp32 probabilities over all experts, gathered token copies and weighted expert outputs.

    Kept per token: router logits and probabilities (8 bytes per expert), ``top_k`` gathered inputs if anything trained reads
    them, ``top_k`` expert outputs for the gradient of the routing weights.  Ignored: index tensors (16 bytes per choice).
    Source: transformers 5.23 models/qwen3_moe/modeling_qwen3_moe.py.
    """
    mlp, regime, hidden = view.block.mlp, view.regime, view.hidden
    rows = mlp.top_k * hidden * regime.linear_out
    kept = 8 * mlp.n_experts + rows * 2 + 16 * mlp.top_k
    return Step("routing", kept, stream + rows, stream + 2 * rows)
