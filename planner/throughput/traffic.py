"""Device-memory traffic of everything that is not a large product: bytes read and written per token.

Each eager operator reads its inputs and writes its output once; caches are far smaller than these tensors at
training sizes. Counts follow the operators that ``TorchDispatchMode`` records for Transformers 5.23 and peft
0.21 modules (a Llama layer: 38 forward).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from planner.anatomy.adapters import is_adapted
from planner.anatomy.parameters import is_quantizable
from planner.anatomy.regime import Regime
from planner.domain.model import BlockSpec, LinearSpec, ModelSpec, NormSpec
from planner.domain.stack import Stack


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes per token of one forward and one backward pass."""

    forward: float = 0.0
    backward: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.forward + other.forward, self.backward + other.backward)

    def times(self, count: float) -> Traffic:
        """The same traffic ``count`` times."""
        return Traffic(self.forward * count, self.backward * count)


@dataclass(frozen=True, slots=True)
class TrafficView:
    """What decides the traffic of a layer; ``targets`` is ``None`` without adapters,
    ``dropout`` whether LoRA drops inputs.

    ``rotates``: adapters are OFT's.
    """

    regime: Regime
    stack: Stack
    targets: tuple[str, ...] | None
    dropout: bool
    rotates: bool = False

    @property
    def trains_base(self) -> bool:
        """Whether the base is trained."""
        return self.targets is None

    def adapted(self, linear: LinearSpec) -> bool:
        """Whether LoRA adapts this matrix."""
        return self.targets is not None and is_adapted(linear, self.targets)

    def quantized(self, linear: LinearSpec) -> bool:
        """Whether this matrix is stored in 8 or 4 bits."""
        return self.regime.quantized and is_quantizable(linear, self.stack.skips_experts)

    def input_bytes(self, linear: LinearSpec) -> int:
        """Bytes per element of the tensor that this matrix reads."""
        if linear.reads in ("attn_in", "mixer_in", "mlp_in", "head_in"):
            return self.regime.norm_out
        return self.regime.compute if linear.reads in ("attn_out", "mixer_out") else self.regime.linear_out


@dataclass(frozen=True, slots=True)
class ModelTraffic:
    """Traffic of all blocks.

    ``elementwise``: norms, residuals, rotary, activations, casts; ``adapters``; ``products``:
    what large products write.
    """

    elementwise: Traffic
    adapters: Traffic
    products: Traffic


@lru_cache(maxsize=256)
def model_traffic(model: ModelSpec, view: TrafficView) -> ModelTraffic:
    """Traffic per token of all blocks, one forward and one backward pass."""
    elementwise, adapters, products = Traffic(), Traffic(), Traffic()
    for group in model.groups:
        block = group.block
        layer = norms_traffic(block.norms, view) + residual_traffic(model.hidden_size, view.regime)
        layer = (
            layer
            + rotary_traffic(block, view.regime)
            + activation_traffic(block, view)
            + routing_traffic(block, model, view)
        )
        layer = layer + casts_traffic(block, view) + mixer_traffic(block, view.regime)
        elementwise = elementwise + layer.times(group.count)
        for linear in block.linears:
            products = products + product_traffic(linear, view).times(group.count)
            if view.adapted(linear):
                adapters = adapters + adapter_traffic(linear, view).times(group.count)
    return ModelTraffic(elementwise, adapters, products)


def product_traffic(linear: LinearSpec, view: TrafficView) -> Traffic:
    """What the large product of one matrix writes, bytes per token: its output forward,
    its input's gradient backward.

    A kernel reads its operands while it multiplies, but writes a tile when the tile is done: a narrow matrix
    has few multiplications per output to pay for that.
    Source: CUTLASS ``efficient_gemm.md`` (main loop and epilogue); NVIDIA,
    "Matrix Multiplication Background User's Guide".
    Ignored: the weight's gradient (weights x width per micro-step, below 1 % from 512 tokens on); the loss's
    logits are counted there.
    """
    width = view.regime.compute * linear.active_copies
    return Traffic(linear.out_features * width, linear.in_features * width)


def norms_traffic(norms: tuple[NormSpec, ...], view: TrafficView) -> Traffic:
    """Norms of one layer, bytes per token.

    A Python RMS norm upcasts (r, w4), squares (8), averages (4), scales (8), casts back and multiplies by its
    weight; backward it undoes each: about 60 bytes per feature beside the casts, and 12 more for a trained
    weight.  A fused kernel reads and writes once.
    Source: transformers 5.23 ``models/llama/modeling_llama.py`` LlamaRMSNorm; torch
    ``native/cuda/layer_norm_kernel.cu``.
    """
    regime, total = view.regime, Traffic()
    for norm in norms:
        width = norm.width * norm.copies * norm.rows_per_token
        taken = regime.residual if norm.on == "hidden" else regime.linear_out
        given = regime.norm_out if norm.on == "hidden" else regime.linear_out
        upcast = 0 if taken == 4 else taken + 4
        if norm.kind == "layer":
            total = total + Traffic(width * (upcast + 4 + given), width * (upcast + 2 * given + 4))
        elif view.stack.fused_norm:
            total = total + Traffic(width * (taken + given), width * (2 * taken + given))
        else:
            forward = upcast + 8 + 4 + 8 + upcast + taken + given
            backward = given + taken + 2 * upcast + 48 + (12 if view.trains_base else 0)
            total = total + Traffic(width * forward, width * backward)
    return total


def residual_traffic(hidden: int, regime: Regime) -> Traffic:
    """Two residual additions forward, two gradient additions backward, three accesses each;
    bytes per token.
    """
    return Traffic(6 * hidden * regime.residual, 6 * hidden * regime.residual)


def rotary_traffic(block: BlockSpec, regime: Regime) -> Traffic:
    """Rotary embedding of queries and keys: two products, negate half, concatenate, add (9 accesses);
    bytes per token.

    Source: transformers 5.23 ``modeling_llama.py`` apply_rotary_pos_emb.  Ignored:
    models that rotate in fp32 (twice this).
    """
    attention = block.attention
    if attention.position != "rope":
        return Traffic()
    elements = (attention.q_width + attention.k_width) * regime.linear_out
    return Traffic(9 * elements, 9 * elements)


def mixer_traffic(block: BlockSpec, regime: Regime) -> Traffic:
    """Layers without attention: each tensor between their matrices is written once and read once;
    bytes per token.

    Backward makes the tensors of the forward pass again, and a gradient of each.
    Source: planner/program/mixers.py, which names the code.
    """
    if block.mixer is None:
        return Traffic()
    moved = 2 * block.mixer.elements_per_token * regime.compute
    return Traffic(moved, 2 * moved)


# Accesses of two bytes in forward and backward.
_WIDE_ACTIVATIONS = {"relu2": (12, 23), "xielu": (48, 105)}


def activation_traffic(block: BlockSpec, view: TrafficView) -> Traffic:
    """The MLP's activation, bytes per token.

    Gated eager: activation (2 accesses) and product (3), backward 3 and 6; in one kernel 3 and 5.  An
    activation written in Python (``gelu_new``) takes eight operators of two accesses each.  A squared ReLU
    and xIELU run in fp32 under autocast, which takes twice the bytes; their accesses are those of the
    operators in planner/program/activations.py.
    Source: transformers 5.23 ``modeling_llama.py`` LlamaMLP, ``activations.py`` NewGELUActivation,
    ReLUSquaredActivation and XIELUActivation; Liger ``ops/swiglu.py``.
    """
    width = block.mlp.active_width * view.regime.linear_out
    if block.mlp.gated:
        return Traffic(3 * width, 5 * width) if view.stack.fused_mlp else Traffic(5 * width, 9 * width)
    if block.mlp.activation in ("gelu_new", "gelu_fast"):
        return Traffic(16 * width, 24 * width)
    if block.mlp.activation in _WIDE_ACTIVATIONS:
        forward, backward = _WIDE_ACTIVATIONS[block.mlp.activation]
        return Traffic(forward * width, backward * width)
    return Traffic(2 * width, 3 * width)


def routing_traffic(block: BlockSpec, model: ModelSpec, view: TrafficView) -> Traffic:
    """Mixture of experts: gather ``top_k`` copies of each token,
    weight and scatter them back (6 accesses), bytes per token.

    Source: transformers 5.23 ``models/qwen3_moe/modeling_qwen3_moe.py``.  Ignored:
    the router's probabilities (below 1 %).
    """
    copies = block.mlp.top_k * model.hidden_size * view.regime.linear_out
    return Traffic(6 * copies, 9 * copies)


def casts_traffic(block: BlockSpec, view: TrafficView) -> Traffic:
    """Copies around matrices that are given fp32 and compute in 16 bits; bytes per token.

    Each casts its input on its own (read 4, write 2) and its gradient back; a k-bit one also casts what it
    returns to the dtype of its input (read 2, write 4).  Attention casts wide queries, keys and values.
    Source: bitsandbytes 0.41 to 0.50 nn/modules.py Linear4bit.forward (``x.to(compute_dtype)``,
    ``.to(inp_dtype)``); torch autocast; transformers 4.37 and 5.23 modeling_flash_attention_utils.py (cast
    back to half precision).
    """
    regime = view.regime
    if regime.compute == 4:
        return Traffic()
    moved = 0
    for linear in block.linears:
        given = view.input_bytes(linear)
        if given > regime.compute:
            returned = linear.out_features if view.quantized(linear) and regime.linear_out == given else 0
            moved += (linear.in_features + returned) * linear.active_copies * (given + regime.compute)
    if regime.linear_out > regime.compute:
        attention = block.attention
        moved += (attention.q_width + attention.k_width + attention.v_width) * (
            regime.linear_out + regime.compute
        )
    return Traffic(moved, moved)


def adapter_traffic(linear: LinearSpec, view: TrafficView) -> Traffic:
    """LoRA branch or OFT's rotation of one matrix, bytes per token, by the stack's kind of kernels.

    Source: switch ``adapter_kernels`` of the stack; peft 0.21 ``tuners/lora/layer.py``, unsloth 2026.10
    ``kernels/fast_lora.py``.
    """
    if view.rotates:
        return _rotation_traffic(linear, view)
    copies = linear.active_copies
    width_in, width_out = linear.in_features * copies, linear.out_features * copies
    if view.stack.adapter_kernels == "eager":
        return _eager_adapter(width_in, width_out, linear, view)
    return _joined_adapter(width_in, width_out, view)


def _joined_adapter(width_in: int, width_out: int, view: TrafficView) -> Traffic:
    """LoRA branch without operators of its own for casts, scaling and addition, bytes per token.

    Fused: the second product adds its scaled result to the base's output in place (read, write); backward
    reads the output's gradient twice and the input twice, and adds the input gradient in place
    (2).  Compiled: the second product is written and one kernel scales and adds (4 accesses); backward one
    kernel scales the output's gradient (2), two products read it, the input is read once, and its gradient is
    written and added (4).  Dropout makes its mask again from a seed.
    Source: unsloth 2026.10 ``kernels/utils.py`` matmul_lora, ``kernels/fast_lora.py``; axolotl 0.19
    ``kernels/lora.py``; torch inductor's fusion of pointwise operators.
    """
    each = view.regime.compute
    if view.stack.adapter_kernels == "fused":
        return Traffic(each * (width_in + 2 * width_out), each * (4 * width_in + 2 * width_out))
    return Traffic(each * (width_in + 4 * width_out), each * (5 * width_in + 4 * width_out))


def _eager_adapter(width_in: int, width_out: int, linear: LinearSpec, view: TrafficView) -> Traffic:
    """LoRA branch of separate operators, bytes per token.

    Input side: cast to the adapter's dtype, dropout (read, write, one-byte mask), autocast's copy, read by
    ``A``.  Output side: ``B`` writes, scaling (2), addition to the base (3), and a clone (2) over quantised
    bases.  Backward mirrors it, reads both sides twice for the two gradients of each matrix and adds the
    input gradient to the base's (3).
    Source: peft 0.21 ``tuners/lora/layer.py`` and ``bnb.py``.  Ignored:
    the rank-wide tensors (rank / width, below 2 %).
    """
    regime = view.regime
    given = view.input_bytes(linear)
    casts = not (view.quantized(linear) and regime.autocast)
    branch = regime.adapter_seen if casts else given
    product = regime.compute if regime.autocast else regime.adapter_seen
    cast_in = given + branch if branch != given else 0
    cast_again = branch + product if product != branch else 0
    drop = 2 * branch + 1 if view.dropout else 0
    into = cast_in + drop + cast_again + product
    out = product + 2 * product + regime.linear_out * 2 + product
    clone = 2 * regime.linear_out if view.quantized(linear) else 0
    forward = width_in * into + width_out * (out + clone)
    backward = width_in * (into + product + 3 * given) + width_out * (
        2 * product + 2 * product + regime.linear_out
    )
    return Traffic(forward, backward)


def _rotation_traffic(linear: LinearSpec, view: TrafficView) -> Traffic:
    """OFT before one matrix, bytes per token: casts on both sides, a product (2; backward two, 4),
    and a copy in rows (2).

    Source: peft 0.21 ``tuners/oft/layer.py`` Linear.forward, OFTRotationModule.forward.
    """
    given, wide = view.input_bytes(linear), view.regime.adapter_seen
    product = view.regime.compute if view.regime.autocast else wide
    into = (given + wide if given != wide else 0) + (wide + product if wide != product else 0)
    return Traffic(
        linear.in_features * (2 * into + 4 * product),
        linear.in_features * (2 * into + 4 * product + 2 * wide),
    )


# Bytes per logit that each tensor of the loss chain moves: written once, and read as often as the next
# operators need it.  ``model_loss`` is an upcast and a log-softmax, of which no gradient is made.
_LOSS_TENSORS = {
    "compute": 2.0,
    "float": 2.5,
    "shifted": 2.0,
    "log_softmax": 3.0,
    "nll_grad": 2.0,
    "log_softmax_grad": 3.0,
    "compute_grad": 1.0,
    "model_loss": 5.5,
}


def logits_bytes(stack: Stack, loss: str, regime: Regime) -> float:
    """Bytes moved per logit over forward and backward.

    Head output and its gradient: written once, read by the loss and by the two products backward (6 accesses
    in the compute dtype).  Then each tensor of the stack's chain in its own dtype: upcast (read, write),
    shifted copy (read, write), log-softmax (two reads, write), and the gradients alike; each forward copy is
    undone backward.  Liger and chunked losses keep a chunk in cache-sized pieces: logits written, read,
    overwritten by their gradient and read twice.
    Source: torch ``native/cuda/SoftMax.cu``; transformers 5.23 ``loss/loss_utils.py``; Liger
    ``ops/fused_linear_cross_entropy.py``.
    """
    head = 6.0 * regime.compute
    if loss in ("liger", "chunked"):
        return head + 4.0 * regime.compute
    # Under DeepSpeed there is no autocast: a stack without an explicit upcast stays in 16 bits.
    wide = 4 if "float" in stack.loss_forward and regime.engine != "deepspeed" else regime.compute
    names = dict.fromkeys((*stack.loss_forward, *stack.loss_backward))
    chain = sum(_LOSS_TENSORS[name] * wide for name in names if name != "compute")
    undone = sum(_LOSS_TENSORS[name] * wide for name in stack.loss_forward if name in ("float", "shifted"))
    return head + chain + undone


def read_logits_bytes(loss: str, regime: Regime) -> float:
    """Bytes moved per logit of a pass that only takes log-probabilities: written, read,
    and each tensor of the forward chain.

    Source: as :func:`logits_bytes`; trl 1.16.0 kernels/chunked_logprob.py for a loss in tiles.
    """
    if loss != "hf":
        return 2.0 * regime.compute
    wide = 4 if regime.engine != "deepspeed" else regime.compute
    return 2.0 * regime.compute + sum(_LOSS_TENSORS[name] * wide for name in ("float", "log_softmax"))


def normhead_bytes(model: ModelSpec, *, trained: bool, width: int) -> float:
    """Bytes per micro-step to normalise a NormHead's whole weight: norm (read), divide (read, write);
    backward 7 more if trained.

    Source: Baichuan2 ``modeling_baichuan.py`` NormHead.forward calls ``nn.functional.normalize`` on every
    training step.
    """
    if not model.normhead:
        return 0.0
    return float(model.head.weight_count * width * (3 + (7 if trained else 0)))
