"""What matrices keep for backward: inputs, adapter branches, expanded k-bit weights.

Sources: peft 0.21 ``tuners/lora/layer.py`` and ``bnb.py``, bitsandbytes 0.50 ``autograd/_functions.py``.
"""

from __future__ import annotations

from planner.anatomy.int8 import int8_column_bytes, int8_work_bytes, is_int8
from planner.anatomy.ledger import BlockView, Step, input_bytes
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
    if in_bytes != regime.compute and (view.trains_base or _keeps_4bit_input(view, linear)):
        saved += width * regime.compute
    if view.adapted(linear):
        more = _adapter_amounts(view, linear, width, in_bytes)
        saved, forward, backward = saved + more[0], forward + more[1], backward + more[2]
    return saved, forward, backward


def _adapter_amounts(view: BlockView, linear: LinearSpec, width: int, in_bytes: int) -> tuple[Number, Number, Number]:
    """(saved, forward, backward) bytes per token of the LoRA branch of one matrix.

    PEFT casts the input to the adapter's dtype (always for plain linears, outside autocast for k-bit ones), applies dropout (a
    copy and a one-byte mask), then ``A`` and ``B``; autocast casts once more.  Source: peft 0.21 tuners/lora/layer.py, bnb.py.
    """
    regime, adapter = view.regime, view.recipe.adapter
    if adapter is None or view.merged(linear):
        return 0, 0, 0
    casts = not (view.quantized(linear) and regime.autocast)
    branch_bytes = regime.adapter if casts else in_bytes
    product_bytes = regime.compute if regime.autocast else regime.adapter
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
    # PEFT copies the result of a 4-bit matrix before it adds to it, not that of an int8 one.
    clone = linear.out_features * copies * regime.linear_out if view.quantized(linear) and not is_int8(view) else 0
    # The saved copy is released once A's gradient is known, so casts and the mask product reuse its room.
    if product_bytes != branch_bytes:
        backward = width * (branch_bytes * 2 - product_bytes if dropped else branch_bytes)
    else:
        backward = width * branch_bytes
    return saved + rank_bytes, transient + 2 * out_bytes + clone, backward + rank_bytes


def linear_step(view: BlockView, reads: str, stream: Number) -> Step:
    """All matrices that read one tensor: its saved copies, their outputs, their gradients, one dequantised weight."""
    bare = ("router", "parameter")
    linears = [linear for linear in view.block.linears if linear.reads == reads and (linear.group, linear.kind) != bare]
    if reads == "attn_in":
        linears += [linear for linear in view.block.linears if linear.reads in ("attn_latent_q", "attn_latent_kv")]
    return _linear_step(view, reads, linears, stream)


def _linear_step(view: BlockView, name: str, linears: list[LinearSpec], stream: Number) -> Step:
    regime = view.regime
    saved = shared_input_bytes(view, linears) + int8_column_bytes(view, linears)
    outputs: Number = 0
    branch_forward: Number = 0
    branch_backward: Number = 0
    fixed = 0
    merged: Number = 0
    for linear in linears:
        merged = merged + merged_weight_bytes(view, linear)
        amounts, work = linear_amounts(view, linear), int8_work_bytes(view, linear)
        copies = linear.active_copies if linear.group == "expert" else 1
        saved = saved + amounts[0]
        branch_forward = maximum(branch_forward, amounts[1], work[0])
        branch_backward = maximum(branch_backward, amounts[2], work[1])
        outputs += linear.out_features * copies * regime.linear_out
        fixed = max(fixed, dequantized_bytes(view, linear))
    inputs = max((linear.in_features * input_bytes(view, linear) for linear in linears), default=0)
    return Step(
        name,
        saves=saved,
        forward=stream + inputs + outputs + branch_forward,
        backward=stream + inputs * min(2, len(linears)) + outputs + branch_backward,
        fixed_saves=gptq_kept_bytes(view, linears) + cast_weight_bytes(view, linears) + merged,
        fixed_forward=fixed if _expands_forward(view) else 0,
        fixed_backward=fixed + merged,
    )


def _expands_forward(view: BlockView) -> bool:
    """Whether matrices are expanded in the forward pass too: an int8 product needs none of it."""
    return not is_int8(view) and (view.stack.dequantizes_forward or not _is_4bit(view))


def merged_weight_bytes(view: BlockView, linear: LinearSpec) -> Number:
    """Bytes of an expert tensor with its adapter added in, kept for backward; the gradient of it takes as much again.

    Formula: every element of the tensor in its own dtype, idle experts included, and the adapter cast to that dtype.
    Source: peft 0.21 tuners/lora/layer.py ParamWrapper, _LoraFactorsProxy (``torch.baddbmm(W, lhs, rhs)``).
    """
    adapter, base = view.recipe.adapter, view.regime.base
    if adapter is None or not view.merged(linear):
        return 0
    factors: Number = linear.copies * linear.rank_factor * (linear.in_features + linear.out_features) * adapter.rank
    return linear.weight_count * base + (factors * base if view.regime.adapter != base else 0)


def shared_input_bytes(view: BlockView, linears: list[LinearSpec]) -> Number:
    """Bytes per token of inputs that are kept as they are, each tensor once.

    A trained matrix keeps its input when no cast is needed; int8 keeps a reference to it always; a 4-bit or frozen one only
    through an adapter that reads it without a copy.  The attention output is kept by the attention kernel already.
    """
    kept: dict[str, int] = {}
    for linear in linears:
        in_bytes = input_bytes(view, linear)
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
    kernel that takes a mask always writes token by token.  Source: torch 2.13 aten/src/ATen/native/transformers/cuda:
    flash_attn/flash_api.cpp (``empty_like(q)``), attention.cu (``_efficient_attention_forward``).
    """
    attention = view.block.attention
    if view.recipe.attention == "eager" or attention.sdpa_input == "broadcast":
        return False
    return not attention.joined_rotary or (view.padded and view.recipe.attention == "sdpa")


def _keeps_input(view: BlockView, linear: LinearSpec) -> bool:
    """Whether the input of ``linear`` is kept as it is, by the matrix or by its adapter."""
    in_bytes, compute = input_bytes(view, linear), view.regime.compute
    if is_int8(view) and view.quantized(linear):
        return True
    by_base = in_bytes == compute and (view.trains_base or view.merged(linear) or _keeps_4bit_input(view, linear))
    return by_base or _adapter_shares_input(view, linear, in_bytes)


def _adapter_shares_input(view: BlockView, linear: LinearSpec, in_bytes: int) -> bool:
    adapter, regime = view.recipe.adapter, view.regime
    if adapter is None or adapter.dropout > 0 or not view.adapted(linear) or view.merged(linear):
        return False
    casts = not (view.quantized(linear) and regime.autocast)
    branch_bytes = regime.adapter if casts else in_bytes
    product_bytes = regime.compute if regime.autocast else regime.adapter
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
    if view.trains_base and linear.group == "expert" and view.stack.fused_experts:
        # The gradient of one tensor that holds every expert of the layer, before it is added to the one that is kept.
        return linear.weight_count * view.regime.base
    if not view.quantized(linear):
        # A trained fp32 weight under autocast has a 16-bit copy and a 16-bit gradient while the layer runs.
        return linear.weight_count * view.regime.compute * 2 if view.trains_base and view.regime.base > view.regime.compute else 0
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
    Trained fp32 weights are not counted here: autocast caches their copies (``planner.memory.weights:autocast_copy_bytes``).
    Source: torch 2.13 aten/src/ATen/autocast_mode.cpp cached_cast (only fp32 leaves that need a gradient are cached); ``linear``
    saves the weight it used.
    """
    regime = view.regime
    if not (regime.autocast and regime.recasts) or (view.trains_base and regime.base == 4):
        return 0
    plain = (linear for linear in linears if linear.kind != "parameter" and not view.quantized(linear))
    return sum(linear.weight_count * regime.compute for linear in plain)
