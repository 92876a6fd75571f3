"""What matrices keep for backward: inputs, adapter branches, expanded k-bit weights.

Sources: peft 0.21 ``tuners/lora/layer.py`` and ``bnb.py``, bitsandbytes 0.50 ``autograd/_functions.py``.
"""

from __future__ import annotations

from planner.anatomy.inputs import input_bytes
from planner.anatomy.int8 import int8_column_bytes, int8_work_bytes, is_int8
from planner.anatomy.ledger import BlockView, Step
from planner.arrays import maximum
from planner.domain.model import LinearSpec
from planner.domain.recipe import Number


def linear_amounts(view: BlockView, linear: LinearSpec) -> tuple[Number, Number, Number]:
    """(saved, forward, backward) bytes per token that one matrix adds for its own input, adapter included.

    Inputs shared by several matrices are added once by the caller; here only private copies count.
    """
    regime, width = view.regime, linear.in_features * (linear.active_copies if linear.group == "expert" else 1)
    in_bytes = input_bytes(view, linear)
    saved: Number = 0
    forward: Number = 0
    backward: Number = 0
    # Autocast casts each matrix's input on its own: q, k and v keep three 16-bit copies of one fp32 tensor.
    if not _is_grouped(view, linear) and in_bytes != regime.compute and (view.trains_base or _keeps_4bit_input(view, linear)):
        saved += width * regime.compute
    if view.adapted(linear):
        more = _adapter_amounts(view, linear, width, in_bytes)
        saved, forward, backward = saved + more[0], forward + more[1], backward + more[2]
    return saved, forward, backward


def _adapter_amounts(view: BlockView, linear: LinearSpec, width: int, in_bytes: int) -> tuple[Number, Number, Number]:
    """(saved, forward, backward) bytes per token of the LoRA branch of one matrix.

    PEFT casts the input to the adapter's dtype (always for plain linears, outside autocast for k-bit ones), applies dropout (a
    copy and a one-byte mask), then ``A`` and ``B``; autocast casts once more.
    The result of a 4-bit matrix is copied first, but the copy takes its name before the branch runs: the most at once is the
    result, what ``B`` returned, and that scaled (or the sum).
    Source: peft 0.21 tuners/lora/layer.py, bnb.py (``result = result.clone()``).
    """
    regime, adapter = view.regime, view.recipe.adapter
    if adapter is None or view.merged(linear):
        return 0, 0, 0
    casts = not (view.quantized(linear) and regime.autocast)
    branch_bytes = regime.adapter_seen if casts else in_bytes
    product_bytes = regime.compute if regime.autocast else regime.adapter_seen
    dropped = adapter.dropout > 0
    cast_copy = width * branch_bytes if branch_bytes != in_bytes else 0
    saved: Number = width if dropped else 0
    if product_bytes != branch_bytes:
        saved += width * product_bytes
        transient = cast_copy + (width * branch_bytes if dropped else 0)
    elif dropped:
        saved += width * branch_bytes
        transient = cast_copy
    else:
        saved += cast_copy
        transient = 0
    copies = linear.active_copies if linear.group == "expert" else 1
    rank_bytes = product_bytes * adapter.rank * copies
    out_bytes = linear.out_features * copies * product_bytes
    # The saved copy is released once A's gradient is known, so casts and the mask product reuse its room.
    if product_bytes != branch_bytes:
        backward = width * (branch_bytes * 2 - product_bytes if dropped else branch_bytes)
    else:
        backward = width * branch_bytes
    return saved + rank_bytes, transient + 2 * out_bytes, backward + rank_bytes


def linear_step(view: BlockView, reads: str, stream: Number) -> Step:
    """All matrices that read one tensor: its saved copies, their outputs, their gradients, one dequantised weight."""
    bare = ("router", "parameter")
    linears = [linear for linear in view.block.linears if linear.reads == reads and (linear.group, linear.kind) != bare]
    if reads == "attn_in":
        linears += [linear for linear in view.block.linears if linear.reads in ("attn_latent_q", "attn_latent_kv")]
    return _linear_step(view, reads, linears, stream)


def _linear_step(view: BlockView, name: str, linears: list[LinearSpec], stream: Number) -> Step:
    regime = view.regime
    kept_inputs = shared_input_bytes(view, linears)
    saved = kept_inputs + int8_column_bytes(view, linears)
    outputs: Number = 0
    branch_forward: Number = 0
    branch_backward: Number = 0
    fixed = 0
    merged: Number = 0
    gradients = [weight_gradient_bytes(view, linear) for linear in linears]
    for linear in linears:
        merged = merged + merged_weight_bytes(view, linear)
        amounts, work = linear_amounts(view, linear), int8_work_bytes(view, linear)
        copies = linear.active_copies if linear.group == "expert" else 1
        saved = saved + amounts[0]
        branch_forward = maximum(branch_forward, amounts[1], work[0])
        branch_backward = maximum(branch_backward, amounts[2], work[1])
        outputs += linear.out_features * copies * (view.expert_bytes if _is_grouped(view, linear) else regime.linear_out)
        fixed = max(fixed, dequantized_bytes(view, linear))
    inputs = max((linear.in_features * input_bytes(view, linear) for linear in linears), default=0)
    return Step(
        name,
        saves=saved,
        forward=stream + max(inputs - kept_inputs, 0) + outputs + branch_forward,
        backward=stream + inputs * min(2, len(linears)) + outputs + branch_backward,
        fixed_saves=gptq_kept_bytes(view, linears) + cast_weight_bytes(view, linears) + merged,
        fixed_forward=fixed if _expands_forward(view) else 0,
        fixed_backward=fixed + merged,
        gradients=sum(gradients),
        largest_gradient=maximum(0, *gradients),
    )


def _expands_forward(view: BlockView) -> bool:
    """Whether matrices are expanded in the forward pass too: an int8 product needs none of it."""
    return not is_int8(view) and (view.stack.dequantizes_forward or not _is_4bit(view))


def weight_gradient_bytes(view: BlockView, linear: LinearSpec) -> Number:
    """Bytes of the gradients that the backward of one matrix makes: of its weight and bias, or of its adapter.

    Source: torch 2.13 derivatives.yaml, ``mm`` and ``addmm``: the gradients of input and weight are one node's results, so both
    and the gradient of the output are alive together.
    """
    if view.trains_base:
        return (linear.weight_count + linear.bias_count) * view.regime.gradient
    adapter = view.recipe.adapter
    if adapter is None or not view.adapted(linear):
        return 0
    ranks: Number = linear.copies * linear.rank_factor * adapter.rank
    return ranks * (linear.in_features + linear.out_features) * view.regime.adapter_seen


def merged_weight_bytes(view: BlockView, linear: LinearSpec) -> Number:
    """Bytes of an expert tensor with its adapter added in, kept for backward; the gradient of it takes as much again.

    Formula: every element of the tensor in its own dtype, idle experts included, and the adapter cast to that dtype.
    Source: peft 0.21 tuners/lora/layer.py ParamWrapper, _LoraFactorsProxy (``torch.baddbmm(W, lhs, rhs)``).
    """
    adapter, base = view.recipe.adapter, view.regime.base
    if adapter is None or not view.merged(linear):
        return 0
    factors: Number = linear.copies * linear.rank_factor * (linear.in_features + linear.out_features) * adapter.rank
    return linear.weight_count * base + (factors * base if view.regime.adapter_seen != base else 0)


def shared_input_bytes(view: BlockView, linears: list[LinearSpec]) -> Number:
    """Bytes per token of inputs that are kept as they are, each tensor once.

    A trained matrix keeps its input when no cast is needed; int8 keeps a reference to it always; a 4-bit or frozen one only
    through an adapter that reads it without a copy.  The attention output is kept by the attention kernel already.
    """
    kept: dict[str, int] = {}
    for linear in linears:
        # What experts read is gathered from here; the tensor itself is the router's, which computes in the compute dtype.
        routed = linear.reads == "mlp_in" and _is_grouped(view, linear)
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
    if view.shares_norm and any(_keeps_input(view, other) for other in view.block.linears if other.reads == "attn_in"):
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


def _keeps_input(view: BlockView, linear: LinearSpec) -> bool:
    """Whether the input of ``linear`` is kept as it is, by the matrix or by its adapter."""
    in_bytes, compute = input_bytes(view, linear), view.regime.compute
    if is_int8(view) and view.quantized(linear):
        return True
    uncast = in_bytes == compute or _is_grouped(view, linear)
    by_base = uncast and (view.trains_base or view.merged(linear) or _keeps_4bit_input(view, linear))
    return by_base or _adapter_shares_input(view, linear, in_bytes)


def _adapter_shares_input(view: BlockView, linear: LinearSpec, in_bytes: int) -> bool:
    adapter, regime = view.recipe.adapter, view.regime
    if adapter is None or adapter.dropout > 0 or not view.adapted(linear) or view.merged(linear):
        return False
    casts = not (view.quantized(linear) and regime.autocast)
    branch_bytes = regime.adapter_seen if casts else in_bytes
    product_bytes = regime.compute if regime.autocast else regime.adapter_seen
    return branch_bytes == in_bytes == product_bytes


def _keeps_4bit_input(view: BlockView, linear: LinearSpec) -> bool:
    """Whether a 4-bit matrix saves the 16-bit input it computed with (bitsandbytes before 0.45)."""
    return view.stack.linear4bit_keeps_input and _is_4bit(view) and view.quantized(linear)


def context_4bit_bytes(view: BlockView) -> Number:
    """Bytes per token of the inputs that 4-bit matrices hold as attributes of the autograd context, not as saved tensors.

    Formula: compute bytes per input feature, once for the matrices that read one tensor; where the input has another dtype, each
    matrix holds its own cast.  Saved-tensor hooks do not see attributes: non-reentrant checkpointing keeps them for all layers.
    Source: bitsandbytes 0.41.3 autograd/_functions.py:522 MatMul4Bit.forward (``ctx.tensors = (A, B)``); none since 0.45.
    """
    shared: dict[str, int] = {}
    casts = 0
    for linear in view.block.linears:
        if not _keeps_4bit_input(view, linear):
            continue
        width = linear.in_features * view.regime.compute * (linear.active_copies if linear.group == "expert" else 1)
        if input_bytes(view, linear) == view.regime.compute:
            shared[linear.reads] = width
        else:
            casts += width
    return sum(shared.values()) + casts


def _is_4bit(view: BlockView) -> bool:
    return view.recipe.numerics.quantization in ("nf4", "fp4")


def dequantized_bytes(view: BlockView, linear: LinearSpec) -> int:
    """Bytes of one expanded weight: compute dtype for 4-bit (plus fp32 block scales), the input's dtype for int8.

    Source: bitsandbytes 0.50 autograd/_functions.py (MatMul4Bit.backward, MatMul8bitLt.backward).
    """
    if not view.quantized(linear):
        # The gradient of a 16-bit copy of a trained fp32 weight is made in 16-bit, and then widened.
        return linear.weight_count * view.regime.compute if view.trains_base and is_recast(view, linear) else 0
    elements, in_bytes = linear.in_features * linear.out_features, input_bytes(view, linear)
    if is_int8(view):
        return elements * in_bytes
    if _is_4bit(view):
        return elements * view.regime.compute + elements // 64 * 4
    # GPTQ's PyTorch path unpacks to int32, shifts and masks into a second int32 tensor, then scales: 4 + 4 + 2 bytes at once.
    return elements * 10


def gptq_kept_bytes(view: BlockView, linears: list[LinearSpec]) -> int:
    """Expanded GPTQ weights that autograd keeps: the product ``x @ weight`` saves ``weight`` for the gradient of ``x``.

    Formula: 2 bytes per element of each GPTQ matrix, until that layer's backward.  Source: auto_gptq 0.5.1
    nn_modules/qlinear/qlinear_cuda.py forward (``torch.matmul`` of the expanded weight).
    """
    if view.recipe.numerics.quantization != "gptq-int4":
        return 0
    return sum(linear.weight_count * view.regime.compute for linear in linears if view.quantized(linear))


def cast_weight_bytes(view: BlockView, linears: list[LinearSpec]) -> int:
    """Copies of weights that autocast made because they were loaded in another dtype, kept for the gradient of the input.

    Formula: compute bytes per element of each plain matrix whose dtype is not that of autocast (fp16 weights under bf16 as well).
    With checkpointing the layer's copies are made again when it is rebuilt; those of trained fp32 weights also stay cached
    until the forward ends (``planner.memory.weights:autocast_copy_bytes``).
    Source: torch 2.13 aten/src/ATen/autocast_mode.cpp cached_cast (only fp32 leaves that need a gradient are cached); ``linear``
    saves the weight it used.
    """
    return sum(linear.weight_count * view.regime.compute for linear in linears if is_recast(view, linear))


def _is_grouped(view: BlockView, linear: LinearSpec) -> bool:
    """Whether the matrices of all experts are one tensor, which autocast does not see."""
    return linear.group == "expert" and linear.kind == "parameter" and view.stack.fused_experts


def is_recast(view: BlockView, linear: LinearSpec) -> bool:
    """Whether autocast copies this weight: matrix products do; grouped products of fused experts are not on its lists.

    Source: torch 2.13 ATen/autocast_mode.h (no ``_grouped_mm``); transformers 5.23 integrations/moe.py _grouped_mm.
    """
    regime = view.regime
    if not (regime.autocast and regime.recasts) or view.quantized(linear):
        return False
    return linear.kind != "parameter" or not view.stack.fused_experts
