"""Which inputs matrices keep as they are: for their own gradient, through an adapter, or as attributes of k-bit layers.

Sources: peft 0.21 ``tuners/lora/layer.py``, bitsandbytes 0.50 ``autograd/_functions.py``.
"""

from __future__ import annotations

from planner.anatomy.inputs import input_bytes
from planner.anatomy.int8 import is_int8
from planner.anatomy.ledger import BlockView
from planner.anatomy.weight_copies import is_4bit, is_grouped
from planner.domain.model import LinearSpec
from planner.domain.recipe import Number


def shared_input_bytes(view: BlockView, linears: list[LinearSpec]) -> Number:
    """Bytes per token of inputs that are kept as they are, each tensor once.

    A trained matrix keeps its input when no cast is needed; int8 keeps a reference to it always; a 4-bit or frozen one only
    through an adapter that reads it without a copy.  The attention output is kept by the attention kernel already.
    """
    kept: dict[str, int] = {}
    for linear in linears:
        # What experts read is gathered from here; the tensor itself is the router's, which computes in the compute dtype.
        routed = linear.reads == "mlp_in" and is_grouped(view, linear)
        in_bytes = min(input_bytes(view, linear), view.regime.compute) if routed else input_bytes(view, linear)
        width = linear.in_features * (linear.active_copies if linear.group == "expert" and linear.reads == "mlp_mid" else 1)
        if _keeps_input(view, linear):
            # A shared expert's intermediate values are a tensor beside those of the routed ones.
            own = linear.group == "shared_expert" and linear.reads == "mlp_mid"
            key = "shared_mid" if own else linear.reads
            kept[key] = max(kept.get(key, 0), width * in_bytes)
    if _kernel_keeps_output(view):
        kept.pop("attn_out", None)
    if view.block.mlp.activation == "relu" and not view.block.mlp.gated:
        kept.pop("mlp_mid", None)
    if view.shares_norm and is_kept(view, "attn_in"):
        kept.pop("mlp_in", None)
    return sum(kept.values())


def _kernel_keeps_output(view: BlockView) -> bool:
    """Whether the tensor that the output projection reads is the one that the attention kernel saved.

    A kernel's output has the memory layout of its query.  Where that lies head by head, merging the heads makes a copy; the
    kernel that takes a mask, or values of another width than queries, always writes token by token.
    Source: torch 2.13 aten/src/ATen/native/transformers/cuda: flash_attn/flash_api.cpp
    (``empty_like(q)``), attention.cu (``_efficient_attention_forward``).
    """
    attention = view.block.attention
    if view.recipe.attention == "eager" or attention.sdpa_input == "broadcast":
        return False
    takes_mask = view.padded or attention.head_dim != attention.value_head_dim
    return not attention.joined_rotary or (takes_mask and view.recipe.attention == "sdpa")


def is_kept(view: BlockView, reads: str) -> bool:
    """Whether some matrix keeps the tensor ``reads`` as it is."""
    return any(_keeps_input(view, linear) for linear in view.block.linears if linear.reads == reads)


def _keeps_input(view: BlockView, linear: LinearSpec) -> bool:
    """Whether the input of ``linear`` is kept as it is, by the matrix or by its adapter."""
    in_bytes, compute = input_bytes(view, linear), view.regime.compute
    if not view.needs_gradient(linear):
        return _adapter_shares_input(view, linear, in_bytes)
    if is_int8(view) and view.quantized(linear):
        return True
    uncast = in_bytes == compute or is_grouped(view, linear)
    by_base = uncast and (view.trains_base or view.merged(linear) or keeps_4bit_input(view, linear))
    return by_base or _adapter_shares_input(view, linear, in_bytes)


def _adapter_shares_input(view: BlockView, linear: LinearSpec, in_bytes: int) -> bool:
    adapter, regime = view.recipe.adapter, view.regime
    if adapter is None or adapter.dropout > 0 or not view.adapted(linear) or view.merged(linear):
        return False
    casts = not (view.quantized(linear) and regime.autocast)
    branch_bytes = regime.adapter_seen if casts else in_bytes
    product_bytes = regime.compute if regime.autocast else regime.adapter_seen
    return branch_bytes == in_bytes == product_bytes


def keeps_4bit_input(view: BlockView, linear: LinearSpec) -> bool:
    """Whether a 4-bit matrix saves the 16-bit input it computed with (bitsandbytes before 0.45)."""
    keeps = view.stack.linear4bit_keeps_input and view.needs_gradient(linear)
    return keeps and is_4bit(view) and view.quantized(linear)


def context_4bit_bytes(view: BlockView) -> dict[str, int]:
    """Bytes per token of the inputs that 4-bit matrices hold as attributes of the autograd context, by what they read.

    Formula: compute bytes per input feature, once for the matrices that read one tensor; where the input has another dtype, each
    matrix holds its own cast.  Saved-tensor hooks do not see attributes: non-reentrant checkpointing keeps them for all layers.
    Source: bitsandbytes 0.41.3 autograd/_functions.py:522 MatMul4Bit.forward (``ctx.tensors = (A, B)``); none since 0.45.
    """
    held: dict[str, int] = {}
    for linear in view.block.linears:
        if not keeps_4bit_input(view, linear):
            continue
        width = linear.in_features * view.regime.compute * (linear.active_copies if linear.group == "expert" else 1)
        shared = input_bytes(view, linear) == view.regime.compute
        held[linear.reads] = width if shared else held.get(linear.reads, 0) + width
    return held
