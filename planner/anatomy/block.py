"""One decoder layer as a ledger: what each step keeps for backward, and what lives only while it runs.

A layer is a short list of :class:`Step`.  Walking it forward gives what is saved and the peak of a (re)computed forward; walking
it back gives the peak of the backward.  All amounts are bytes per token, per token and key (``pair``), or fixed.

Sources: modeling code of Transformers 5.23 (``models/llama``, ``integrations/sdpa_attention.py``), peft 0.21
``tuners/lora/layer.py`` and ``bnb.py``, bitsandbytes 0.50 ``autograd/_functions.py``, torch 2.13 ``derivatives.yaml``.
Ignored: rotary tables, position ids and per-row statistics other than those named, together under 0.1 % of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.anatomy.adapters import is_adapted
from planner.anatomy.parameters import is_quantizable
from planner.anatomy.regime import Regime
from planner.arrays import maximum
from planner.domain.model import BlockSpec, LinearSpec
from planner.domain.recipe import Number, Recipe
from planner.domain.stack import Stack

# Tensors of intermediate width that an activation keeps when it is written in Python instead of one kernel:
# gelu_new keeps x, tanh(...), x/2 and 1 + tanh(...).  Source: transformers 5.23 activations.py NewGELUActivation.
_ACTIVATION_SAVES = {"gelu_new": 4, "gelu_fast": 4, "quick_gelu": 2}


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a layer.

    ``saves`` bytes per token stay until the step's backward; ``forward`` and ``backward`` are the other bytes per token alive
    while it runs.  ``pair_*`` are the same per token and key, ``fixed_*`` do not depend on tokens (dequantised weights).
    """

    name: str
    saves: Number
    forward: Number
    backward: Number
    pair_saves: Number = 0
    pair_forward: Number = 0
    pair_backward: Number = 0
    fixed_saves: Number = 0
    fixed_forward: Number = 0
    fixed_backward: Number = 0


@dataclass(frozen=True, slots=True)
class BlockView:
    """Everything that decides the ledger of a layer.

    ``padded`` says whether an attention mask exists, which switches grouped-query kernels to expanded keys and values.
    """

    block: BlockSpec
    hidden: int
    regime: Regime
    recipe: Recipe
    stack: Stack
    padded: bool

    @property
    def trains_base(self) -> bool:
        """Whether the block's own matrices are trained."""
        return self.recipe.method == "full"

    def adapted(self, linear: LinearSpec) -> bool:
        """Whether LoRA adapts this matrix."""
        adapter = self.recipe.adapter
        return adapter is not None and is_adapted(linear, adapter.targets)

    def quantized(self, linear: LinearSpec) -> bool:
        """Whether this matrix is stored in 8 or 4 bits."""
        return self.regime.quantized and is_quantizable(linear, self.stack.fused_experts)


@dataclass(frozen=True, slots=True)
class BlockBytes:
    """Bytes of one layer for one micro-batch.

    ``saved``: kept for backward without checkpointing.  ``forward_peak``: most alive in its forward beyond what earlier layers
    saved, its own saved tensors included.  ``backward_peak``: most alive in its backward, its saved tensors included.
    ``boundary``: the input that checkpointing stores.  ``context_held``: bytes that non-reentrant checkpointing fails to free.
    """

    saved: Number
    forward_peak: Number
    backward_peak: Number
    boundary: Number
    context_held: Number


def block_bytes(view: BlockView, tokens: Number, keys: Number) -> BlockBytes:
    """Bytes of one layer for ``tokens`` tokens that each attend to ``keys`` keys."""
    steps = block_steps(view)
    kept: Number = 0
    kept_pair: Number = 0
    fixed: Number = 0
    forward: list[Number] = []
    backward: list[Number] = []
    for step in steps:
        kept = kept + step.saves
        kept_pair = kept_pair + step.pair_saves
        fixed = fixed + step.fixed_saves
        forward.append(tokens * (kept + step.forward + keys * (kept_pair + step.pair_forward)) + fixed + step.fixed_forward)
        backward.append(tokens * (kept + step.backward + keys * (kept_pair + step.pair_backward)) + fixed + step.fixed_backward)
    regime = view.regime
    held = tokens * _int8_context_bytes(view)
    return BlockBytes(
        saved=tokens * (kept + keys * kept_pair) + fixed,
        forward_peak=maximum(*forward),
        backward_peak=maximum(*backward),
        boundary=tokens * view.hidden * regime.residual,
        context_held=held,
    )


def block_steps(view: BlockView) -> list[Step]:
    """The ledger of one layer, in forward order."""
    block, regime, hidden = view.block, view.regime, view.hidden
    stream = hidden * regime.residual
    hidden_norms = sum(norm.copies for norm in block.norms if norm.on == "hidden")
    norm_saves, norm_forward, norm_backward = norm_amounts(view, hidden, regime.residual)
    extra_norms = max(0, hidden_norms - 2)
    steps = [Step("norm_1", norm_saves, stream + norm_forward, stream + norm_backward)]
    steps.append(linear_step(view, "attn_in", stream))
    steps.extend(_attention_steps(view, stream))
    steps.append(linear_step(view, "attn_out", stream))
    if extra_norms:
        steps.append(Step("post_norms", extra_norms * norm_saves, stream + norm_forward, stream + norm_backward))
    if hidden_norms >= 2:
        steps.append(Step("norm_2", norm_saves, stream + norm_forward, stream + norm_backward))
    steps.extend(_mlp_steps(view, stream))
    return steps


def norm_amounts(view: BlockView, width: int, in_bytes: int) -> tuple[int, int, int]:
    """(saved, forward, backward) bytes per token of one norm over ``width`` features of ``in_bytes`` each.

    A Python RMS norm keeps the fp32 input (the input itself when that is fp32) and, if its weight is trained, the normalised
    value in the input's dtype; a fused one keeps its input.  ``nn.LayerNorm`` keeps its input, upcast first under autocast.
    """
    regime = view.regime
    kind = view.block.norms[0].kind if view.block.norms else "rms"
    trained = view.trains_base
    if kind == "layer":
        kept_bytes = 4 if regime.autocast else in_bytes
        return width * kept_bytes + 8, width * regime.norm_out, width * (regime.norm_out + 4)
    if view.stack.fused_norm:
        return width * in_bytes + 4, width * regime.norm_out, width * (regime.norm_out + in_bytes)
    saved = width * 4 + 4 + (width * in_bytes if trained else 0)
    # While it runs: the fp32 product, its cast and the output; backward: three fp32 tensors of this width at once.
    return saved, width * (4 + in_bytes + regime.norm_out), width * (regime.norm_out + 12)


def input_bytes(view: BlockView, linear: LinearSpec) -> int:
    """Bytes per element of the tensor that ``linear`` reads."""
    regime = view.regime
    if linear.reads in ("attn_in", "mlp_in", "head_in"):
        return regime.norm_out
    if linear.reads == "attn_out":
        return regime.compute
    return regime.linear_out


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
    if adapter is None:
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
    clone = linear.out_features * copies * regime.linear_out if view.quantized(linear) else 0
    # The saved copy is released once A's gradient is known, so casts and the mask product reuse its room.
    if product_bytes != branch_bytes:
        backward = width * (branch_bytes * 2 - product_bytes if dropped else branch_bytes)
    else:
        backward = width * branch_bytes
    return saved + rank_bytes, transient + 2 * out_bytes + clone, backward + rank_bytes


def linear_step(view: BlockView, reads: str, stream: Number) -> Step:
    """All matrices that read one tensor: its saved copies, their outputs, their gradients, one dequantised weight."""
    linears = [linear for linear in view.block.linears if linear.reads == reads and linear.group != "router"]
    if reads == "attn_in":
        linears += [linear for linear in view.block.linears if linear.reads in ("attn_latent_q", "attn_latent_kv")]
    return _linear_step(view, reads, linears, stream)


def _linear_step(view: BlockView, name: str, linears: list[LinearSpec], stream: Number) -> Step:
    regime = view.regime
    saved = shared_input_bytes(view, linears)
    outputs: Number = 0
    branch_forward: Number = 0
    branch_backward: Number = 0
    fixed = 0
    for linear in linears:
        amounts = linear_amounts(view, linear)
        copies = linear.active_copies if linear.group == "expert" else 1
        saved = saved + amounts[0]
        branch_forward = maximum(branch_forward, amounts[1])
        branch_backward = maximum(branch_backward, amounts[2])
        outputs += linear.out_features * copies * regime.linear_out
        fixed = max(fixed, dequantized_bytes(view, linear))
    inputs = max((linear.in_features * input_bytes(view, linear) for linear in linears), default=0)
    return Step(
        name,
        saves=saved,
        forward=stream + inputs + outputs + branch_forward,
        backward=stream + inputs * min(2, len(linears)) + outputs + branch_backward,
        fixed_saves=gptq_kept_bytes(view, linears),
        fixed_forward=fixed if view.stack.dequantizes_forward or not _is_4bit(view) else 0,
        fixed_backward=fixed,
    )


def shared_input_bytes(view: BlockView, linears: list[LinearSpec]) -> Number:
    """Bytes per token of inputs that are kept as they are, each tensor once.

    A trained matrix keeps its input when no cast is needed; int8 keeps a reference to it always; a 4-bit or frozen one only
    through an adapter that reads it without a copy.  The attention output is kept by the attention kernel already.
    """
    regime = view.regime
    kept: dict[str, int] = {}
    for linear in linears:
        in_bytes = input_bytes(view, linear)
        width = linear.in_features * (linear.active_copies if linear.group == "expert" and linear.reads == "mlp_mid" else 1)
        by_base = (view.trains_base and in_bytes == regime.compute) or (
            view.recipe.numerics.quantization == "int8" and view.quantized(linear)
        )
        by_base = by_base or (in_bytes == regime.compute and _keeps_4bit_input(view, linear))
        if by_base or _adapter_shares_input(view, linear, in_bytes):
            kept[linear.reads] = max(kept.get(linear.reads, 0), width * in_bytes)
    if view.recipe.attention != "eager":
        kept.pop("attn_out", None)
    return sum(kept.values())


def _adapter_shares_input(view: BlockView, linear: LinearSpec, in_bytes: int) -> bool:
    adapter, regime = view.recipe.adapter, view.regime
    if adapter is None or adapter.dropout > 0 or not view.adapted(linear):
        return False
    casts = not (view.quantized(linear) and regime.autocast)
    branch_bytes = regime.adapter if casts else in_bytes
    product_bytes = regime.compute if regime.autocast else regime.adapter
    return branch_bytes == in_bytes == product_bytes


def _keeps_4bit_input(view: BlockView, linear: LinearSpec) -> bool:
    """Whether a 4-bit matrix saves the 16-bit input it computed with (bitsandbytes before 0.45)."""
    return view.stack.linear4bit_keeps_input and _is_4bit(view) and view.quantized(linear)


def _is_4bit(view: BlockView) -> bool:
    return view.recipe.numerics.quantization in ("nf4", "fp4")


def dequantized_bytes(view: BlockView, linear: LinearSpec) -> int:
    """Bytes of one expanded weight: compute dtype for 4-bit (plus fp32 block scales), the input's dtype for int8.

    Source: bitsandbytes 0.50 autograd/_functions.py (MatMul4Bit.backward, MatMul8bitLt.backward).
    """
    if not view.quantized(linear):
        # A trained fp32 weight under autocast has a 16-bit copy and a 16-bit gradient while the layer runs.
        return linear.weight_count * view.regime.compute * 2 if view.trains_base and view.regime.base > view.regime.compute else 0
    elements = linear.in_features * linear.out_features
    if view.recipe.numerics.quantization == "int8":
        return elements * max(view.regime.norm_out, view.regime.compute)
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


def _attention_steps(view: BlockView, stream: Number) -> list[Step]:
    attention, regime = view.block.attention, view.regime
    c, lo = regime.compute, regime.linear_out
    q, k, v, out = attention.q_width, attention.k_width, attention.v_width, attention.out_width
    steps: list[Step] = []
    head_norms = [norm for norm in view.block.norms if norm.on in ("heads", "latent")]
    if head_norms:
        width = sum(norm.width * norm.rows_per_token * norm.copies for norm in head_norms)
        saved, forward, backward = norm_amounts(view, width, lo)
        steps.append(Step("head_norms", saved, stream + (q + k + v) * lo + forward, stream + (q + k + v) * lo + backward))
    if attention.position == "rope":
        rotated = max(lo, regime.norm_out)
        live = stream + (q + k + v) * lo + (q + k) * rotated + 2 * q * rotated
        steps.append(Step("rope", 0, live, live))
    if view.recipe.attention == "eager":
        steps.append(_eager_step(view, stream))
        return steps
    if view.padded and attention.n_kv_heads < attention.n_heads and view.recipe.attention == "sdpa":
        k, v = q, out
    kept: Number = c * (q + k + v + out) + 4 * attention.n_heads
    # Backward: gradients of q, k, v and out, an fp32 accumulator for dq and the row sums.
    backward = stream + c * (2 * out + q + k + v) + 4 * q + 4 * attention.n_heads
    cast_live = (q + k + v) * lo if lo != c else 0
    steps.append(Step("attention", kept, stream + cast_live, backward))
    return steps


def _eager_step(view: BlockView, stream: Number) -> Step:
    """Attention written out: scores, softmax in fp32 and its cast are full ``heads x tokens x keys`` tensors.

    Kept per score: the fp32 softmax (4) and, unless compute is fp32, its 16-bit cast for the product with the values (2).
    While it runs: the masked scores as well; backward: the gradient in both dtypes, together 4 above what is kept, 6 when the
    stream is fp32 and the scores with it.  Source: transformers 5.23 models/llama/modeling_llama.py eager_attention_forward.
    """
    attention, regime = view.block.attention, view.regime
    c, heads = regime.compute, attention.n_heads
    score_bytes = 4 if regime.norm_out == 4 or c == 4 else c
    # Query, expanded key and expanded value; the product with the values is kept by the output projection if that needs it.
    expanded = c * (attention.q_width * 2 + attention.out_width)
    pair_saves = heads * (4 + (c if c < 4 else 0))
    return Step(
        "attention",
        saves=expanded,
        forward=stream,
        backward=stream + c * (2 * attention.out_width + 2 * attention.q_width),
        pair_saves=pair_saves,
        pair_forward=heads * score_bytes,
        pair_backward=heads * (score_bytes + 2),
    )


def _mlp_steps(view: BlockView, stream: Number) -> list[Step]:
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


def _int8_context_bytes(view: BlockView) -> Number:
    """Bytes per token that int8 matrices hold as attributes of the autograd context instead of as saved tensors.

    Saved-tensor hooks do not see them, so non-reentrant checkpointing keeps them for every layer.
    Source: bitsandbytes 0.50 autograd/_functions.py MatMul8bitLt.forward (``ctx.tensors``), measured 19.1 against 7.1 units.
    """
    if view.recipe.numerics.quantization != "int8":
        return 0
    kept: dict[str, int] = {}
    for linear in view.block.linears:
        if view.quantized(linear):
            kept[linear.reads] = linear.in_features * input_bytes(view, linear)
    return sum(kept.values())
