"""What activation functions keep for backward."""

from __future__ import annotations

from planner.anatomy.ledger import BlockView

# Tensors of intermediate width that an activation keeps when it is written in Python instead of one kernel:
# gelu_new keeps x, tanh(...), x/2 and 1 + tanh(...).  Source: transformers 5.23 activations.py NewGELUActivation.
_ACTIVATION_SAVES = {"gelu_new": 4, "gelu_fast": 4, "quick_gelu": 2}
# The gate of gpt-oss in place of silu: gate and up, the clamped gate, its sigmoid, their product, and up + 1.
# Source: transformers 5.23 models/gpt_oss/modeling_gpt_oss.py GptOssExperts._apply_gate.
_GATE_SAVES = {"clamped_swiglu": 6}


def is_written_out(view: BlockView) -> bool:
    """Whether the activation is several operators instead of one kernel."""
    return view.block.mlp.activation in _ACTIVATION_SAVES


def activation_bytes(view: BlockView, element_bytes: int) -> tuple[int, int]:
    """(kept, result) bytes per feature of the activation function over elements of ``element_bytes``, a gate included.

    A kernel keeps its input; the product of a gate keeps the activated gate and the other factor.  An activation written in
    Python keeps what its products and powers need.  Autocast runs powers in fp32, so ``gelu_new`` then keeps the fp32 copy of x,
    its tanh and 1 + tanh in fp32, and only x / 2 as it was; its result is fp32 too.
    Source: transformers 5.23 activations.py; torch 2.13 ATen/autocast_mode.h (``pow`` is in the fp32 list, ``tanh`` is not).
    """
    mlp = view.block.mlp
    if mlp.gated and view.stack.fused_mlp:
        return 2 * element_bytes, element_bytes
    if mlp.activation in _GATE_SAVES:
        return _GATE_SAVES[mlp.activation] * element_bytes, element_bytes
    factors = 2 if mlp.gated else 0
    if mlp.activation == "gelu_new" and view.regime.autocast:
        return 12 + element_bytes + factors * 4, 4
    return (_ACTIVATION_SAVES.get(mlp.activation, 1) + factors) * element_bytes, element_bytes
