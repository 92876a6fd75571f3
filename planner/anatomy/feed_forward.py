"""What the feed-forward part of a layer keeps for backward: activation, routing, the matrices around them."""

from __future__ import annotations

from planner.anatomy.activation import activation_bytes, is_written_out
from planner.anatomy.ledger import BlockView, Step
from planner.anatomy.matrices import linear_step
from planner.domain.recipe import Number


def mlp_steps(view: BlockView, stream: Number) -> list[Step]:
    """The matrices of the feed-forward part, its routing and its activation, in forward order."""
    steps = [linear_step(view, "mlp_in", stream)]
    if view.block.mlp.n_experts:
        steps.append(_routing_step(view, stream))
    steps.append(_activation_step(view, stream))
    steps.append(linear_step(view, "mlp_mid", stream))
    if view.block.dropouts:
        steps.append(Step("dropouts", view.block.dropouts * view.hidden, stream, stream))
    return steps


def _activation_step(view: BlockView, stream: Number) -> Step:
    """The activation over all features that a token passes, those of routed experts in the dtype of their weights.

    Backward: gradients of both sides of the activation, and of the other factor of a gated one (or of parts written in Python);
    routed and shared experts run one after the other.  The gate of gpt-oss holds the clamped second factor, and the biases
    gathered for both, while it runs.  BLOOM's own function writes its derivative out: six tensors at once, and four forward.
    Source of the last: transformers 5.23 models/bloom/modeling_bloom.py bloom_gelu_back.
    """
    mlp = view.block.mlp
    by_hand = mlp.activation == "bloom_gelu"
    live = 6 if by_hand else 3 if mlp.gated or is_written_out(view) else 2
    routed = mlp.active_width - mlp.shared_width if mlp.n_experts else 0
    saves = results = largest = 0
    for width, element_bytes in ((routed, view.expert_bytes), (mlp.active_width - routed, view.regime.linear_out)):
        kept, result = activation_bytes(view, element_bytes)
        saves, results, largest = saves + width * kept, results + width * result, max(largest, width * result)
    held = 3 * routed * view.expert_bytes if mlp.activation == "clamped_swiglu" else 3 * results if by_hand else 0
    return Step("activation", saves, stream + results + held, stream + live * largest)


def _routing_step(view: BlockView, stream: Number) -> Step:
    """Routing: fp32 probabilities over all experts, gathered token copies and weighted expert outputs.

    Kept per token: probabilities (4 bytes per expert), ``top_k`` times 40 bytes of indices and routing weights, ``top_k``
    gathered inputs where the experts' gradients need them, ``top_k`` expert outputs for the gradient of the routing weights; the
    output of a shared expert for that of its gate.  Source: transformers 5.23 models/{mixtral,qwen2_moe,qwen3_moe}/modeling_*.py,
    integrations/moe.py grouped_mm_experts_forward.
    """
    mlp, regime = view.block.mlp, view.regime
    row = view.hidden * view.expert_bytes
    experts = [linear for linear in view.block.linears if linear.group == "expert" and linear.reads == "mlp_in"]
    gathers = view.trains_base or any(view.adapted(linear) for linear in experts)
    gated_shares = sum(1 for linear in view.block.linears if linear.group == "router") - 1
    rows = mlp.top_k * row
    kept = (
        4 * mlp.n_experts
        + 40 * mlp.top_k
        + 4
        + rows * (2 if gathers else 1)
        + gated_shares * (view.hidden + 1) * regime.linear_out
    )
    return Step("routing", kept, stream + rows, stream + 2 * rows)
