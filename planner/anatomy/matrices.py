"""What matrices keep for backward: inputs, adapter branches, expanded k-bit weights.

Sources: peft 0.21 ``tuners/lora/layer.py`` and ``bnb.py``, bitsandbytes 0.50 ``autograd/_functions.py``.
"""

from __future__ import annotations

from dataclasses import replace

from planner.anatomy.inputs import input_bytes
from planner.anatomy.int8 import int8_column_bytes, int8_work_bytes, is_int8
from planner.anatomy.kbit_backward import all_4bit, moments_4bit
from planner.anatomy.kept_inputs import keeps_4bit_input, shared_input_bytes
from planner.anatomy.ledger import BlockView, Step
from planner.anatomy.weight_copies import cast_weight_bytes, dequantized_bytes, gptq_kept_bytes, is_grouped
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
    if not is_grouped(view, linear) and in_bytes != regime.compute and (view.trains_base or keeps_4bit_input(view, linear)):
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


def _linear_step(view: BlockView, reads: str, linears: list[LinearSpec], stream: Number) -> Step:
    regime = view.regime
    kept_inputs = shared_input_bytes(view, linears)
    saved = kept_inputs + int8_column_bytes(view, linears)
    outputs: Number = 0
    branch_forward: Number = 0
    branch_rebuilt: Number = 0
    branch_backward: Number = 0
    fixed = 0
    merged: Number = 0
    for linear in linears:
        merged = merged + merged_weight_bytes(view, linear)
        amounts, work = linear_amounts(view, linear), int8_work_bytes(view, linear)
        copies = linear.active_copies if linear.group == "expert" else 1
        saved = saved + amounts[0]
        branch_forward = maximum(branch_forward, amounts[1], work[0])
        branch_rebuilt = maximum(branch_rebuilt, amounts[1] - unrebuilt_bytes(view, linear), work[0])
        branch_backward = maximum(branch_backward, amounts[2], work[1])
        outputs += linear.out_features * copies * (view.expert_bytes if is_grouped(view, linear) else regime.linear_out)
        fixed = max(fixed, dequantized_bytes(view, linear))
    inputs = max((linear.in_features * input_bytes(view, linear) for linear in linears), default=0)
    # What routed and shared experts make are two tensors, though both are read by matrices of this step.
    sharers = max((sum(other.group == linear.group for other in linears) for linear in linears), default=0)
    readers = sharers if reads == "mlp_mid" else len(linears)
    out_bytes = 0 if _ends_a_part(view, reads) else regime.linear_out
    step = Step(
        reads,
        saves=saved,
        forward=stream + max(inputs - kept_inputs, 0) + outputs + branch_forward,
        unrebuilt=branch_forward - branch_rebuilt if branch_rebuilt else 0,
        backward=stream + inputs * min(2, readers) + (0 if _ends_a_part(view, reads) else outputs) + branch_backward,
        fixed_saves=gptq_kept_bytes(view, linears) + cast_weight_bytes(view, linears) + merged,
        # An int8 product expands nothing in the forward pass.
        fixed_forward=0 if is_int8(view) else fixed,
        fixed_backward=fixed + merged,
    )
    if all_4bit(view, linears):
        moments = moments_4bit(view, linears, stream, out_bytes, linear_amounts)
        step = replace(step, backward=0, fixed_backward=0, moments=moments)
    return _with_weight_gradients(view, step, linears)


def _with_weight_gradients(view: BlockView, step: Step, linears: list[LinearSpec]) -> Step:
    """``step`` with the gradients of weights that it makes.

    They come one after the other: when the last one comes, what the others kept has gone, and their outputs' gradients.  One that
    is widened to fp32 comes when its product has run and the 16-bit copy of the weight has gone.
    Source: torch 2.13 autograd/engine.cpp releases a node's variables when it has run.
    """
    gradients = [weight_gradient_bytes(view, linear) for linear in linears]
    added = (gradient - cast_weight_bytes(view, [linear]) for gradient, linear in zip(gradients, linears, strict=True))
    others = sorted(linears, key=lambda linear: linear.weight_count)[:-1] if view.trains_base else []
    return replace(
        step,
        gradients=sum(gradients),
        largest_gradient=maximum(0, *added),
        released=sum(linear.out_features for linear in others if linear.group != "expert") * view.regime.linear_out,
        fixed_released=cast_weight_bytes(view, linears) if view.trains_base else 0,
    )


def unrebuilt_bytes(view: BlockView, linear: LinearSpec) -> int:
    """Bytes per token that a rebuilt layer does not make when this matrix is its last: it ends with the last saved tensor.

    Formula: what the adapter's ``B`` returns, and that scaled.
    Source: torch 2.13 utils/checkpoint.py ``_StopRecomputationError``, set_checkpoint_early_stop (on), raised when a tensor is
    saved, which for a product is before it runs.
    Ignored: the output of a matrix without an adapter.
    """
    if not view.adapted(linear) or view.merged(linear):
        return 0
    copies = linear.active_copies if linear.group == "expert" else 1
    return 2 * linear.out_features * copies * _product_bytes(view)


def _product_bytes(view: BlockView) -> int:
    """Bytes per element of an adapter's products."""
    return view.regime.compute if view.regime.autocast else view.regime.adapter_seen


def early_gradient_bytes(view: BlockView) -> int:
    """Bytes per token of gradients that are there before a layer is rebuilt, beside that of its output.

    A layer is rebuilt when its backward first asks for a saved tensor.  Before that come: the cast of an fp32 stream's gradient
    for a 16-bit part, the scaling of the last matrix's adapter, and the routed experts' rows, which their sum hands out.
    Source: torch 2.13 utils/checkpoint.py ``_checkpoint_hook``; peft 0.21 tuners/lora/layer.py (``* scaling``); transformers 5.23
    integrations/moe.py grouped_mm_experts_forward.
    """
    regime, mlp = view.regime, view.block.mlp
    lasts = [linear for linear in view.block.linears if linear.reads == "mlp_mid" and linear.group != "expert"]
    if view.block.reads_stream or view.block.dropouts:
        return 0
    cast = view.hidden * regime.compute if regime.residual > regime.compute == regime.linear_out else 0
    scaled = max((view.hidden * _product_bytes(view) for linear in lasts if view.adapted(linear)), default=0)
    if not mlp.n_experts:
        return cast + scaled
    if not mlp.shared_width:
        return cast + mlp.top_k * view.hidden * view.expert_bytes
    # The product with the gate of a shared expert asks for what it saved.
    gated = sum(1 for linear in view.block.linears if linear.group == "router") > 1
    return cast + (0 if gated else scaled)


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


def _ends_a_part(view: BlockView, reads: str) -> bool:
    """Whether the output of these matrices is added to the stream in its dtype: the gradient of both is one tensor."""
    norms = sum(norm.copies for norm in view.block.norms if norm.on == "hidden")
    behind = view.block.reads_stream or view.block.dropouts or norms > 2
    same = view.regime.linear_out == view.regime.residual and (reads == "mlp_mid" or view.regime.compute == view.regime.residual)
    return reads in ("attn_out", "mlp_mid") and same and not behind and not view.block.mlp.n_experts
