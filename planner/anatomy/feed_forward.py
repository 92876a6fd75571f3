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
    # Backward: gradients of both sides of the activation, and of the other factor of a gated one (or of parts written in Python).
    live = 3 if mlp.gated or saves > 1 else 2
    steps.append(Step("activation", width * lo * copies, stream + width * lo, stream + live * width * lo))
    steps.append(linear_step(view, "mlp_mid", stream))
    return steps


def _routing_step(view: BlockView, stream: Number) -> Step:
    """Routing: fp32 probabilities over all experts, gathered token copies and weighted expert outputs.

    Kept per token: probabilities (4 bytes per expert), ``top_k`` times 40 bytes of indices and routing weights, ``top_k``
    gathered inputs where the experts' gradients need them, ``top_k`` expert outputs for the gradient of the routing weights; the
    output of a shared expert for that of its gate.  Source: transformers 5.23 models/{mixtral,qwen2_moe,qwen3_moe}/modeling_*.py,
    integrations/moe.py grouped_mm_experts_forward.
    """
    mlp, regime = view.block.mlp, view.regime
    row = view.hidden * regime.linear_out
    experts = [linear for linear in view.block.linears if linear.group == "expert" and linear.reads == "mlp_in"]
    gathers = view.trains_base or any(view.adapted(linear) for linear in experts)
    gated_shares = sum(1 for linear in view.block.linears if linear.group == "router") - 1
    rows = mlp.top_k * row
    kept = 4 * mlp.n_experts + 40 * mlp.top_k + 4 + rows * (2 if gathers else 1) + gated_shares * (row + regime.linear_out)
    return Step("routing", kept, stream + rows, stream + 2 * rows)
