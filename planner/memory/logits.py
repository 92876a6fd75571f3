"""Bytes of logits and loss: the copies that each stack makes of ``tokens x vocabulary`` values."""

from __future__ import annotations

from planner.arrays import ceil_div, ceil_pow2, maximum, minimum, where
from planner.domain.recipe import Number
from planner.domain.stack import LogitsCopy
from planner.memory.head import head_gradient_bytes
from planner.memory.loss_pieces import differentiates_pieces, head_input_gradient_bytes, piece_tokens
from planner.program.job import Job


def logits_forward_bytes(job: Job) -> Number:
    """Most bytes of logits alive when the loss is computed.

    Formula: tokens * vocabulary * sum over the stack's copies (2 for the compute dtype, 4 for the fp32 copy, its shifted copy
    and the
    saved log-softmax).  A model whose code keeps logits in 16-bit has all copies in 16-bit and no fp32 one; the shifted copy
    exists only for a batch above 1.  Source: the stack's ``loss_forward`` switch.
    A loss whose pieces are differentiated as they are computed has a piece's logits here, whose gradient takes their place, and
    the gradient of the head's input.
    """
    if job.recipe.loss == "chunked" and differentiates_pieces(job):
        return piece_tokens(job) * job.model.vocab_size * job.regime.compute + head_input_gradient_bytes(job)
    return _loss_bytes(job, job.stack.loss_forward)


def logits_backward_bytes(job: Job) -> Number:
    """Most bytes of logits alive in the backward of the loss: the saved log-softmax, its gradient and the gradient below it.

    Source: the stack's ``loss_backward`` switch; torch 2.13 nll_loss and _log_softmax_backward_data.
    """
    if job.recipe.loss == "chunked" and differentiates_pieces(job):
        return head_input_gradient_bytes(job)
    return _loss_bytes(job, job.stack.loss_backward)


def _loss_bytes(job: Job, copies: tuple[LogitsCopy, ...]) -> Number:
    tokens, vocab = job.tokens, job.model.vocab_size
    if job.recipe.loss == "liger":
        return liger_bytes(job)
    if job.recipe.loss == "chunked":
        # Full logits in compute dtype would defeat the purpose: only one piece exists at a time, with its fp32 chain.
        return piece_tokens(job) * vocab * _bytes_per_logit(job, copies)
    return tokens * vocab * _bytes_per_logit(job, copies)


def _bytes_per_logit(job: Job, copies: tuple[LogitsCopy, ...]) -> Number:
    """Bytes per logit of ``copies``.

    A model that keeps its logits in the compute dtype still gets fp32 copies under autocast: the log-softmax that the nll loss
    reads, and the logits that accelerate hands back.  With the 16-bit logits and log-softmax these are 12 bytes at the end of the
    forward, and 10 in backward: no more than the switches add up to.  Its shifted copy is made before that.  Under a 16-bit
    engine all of its copies have 16 bits.
    Source: torch 2.13 ATen/native/LossNLL.cpp cross_entropy_loss, autocast_mode.h (``nll_loss`` is in the fp32 list);
    accelerate 1.15 utils/operations.py convert_outputs_to_fp32.
    """
    compute, fp32_logits = job.regime.compute, job.model.fp32_logits
    wide = 4 if fp32_logits or job.regime.autocast else compute
    total: Number = 0
    for copy in copies:
        if copy == "compute":
            total += compute
        elif copy == "float":
            # Where no 16-bit copy is listed, the fp32 tensor is the logits themselves, also under fp32 compute.
            total += 4 if wide > compute or "compute" not in copies else 0
        elif copy == "shifted":
            total = total + where(job.recipe.batch.micro_batch > 1, 4 if fp32_logits else compute, 0)
        else:
            total += wide
    # A soft cap keeps its tanh, in the dtype of the logits before they are widened.
    return total + (compute if job.model.logit_softcap else 0)


def uncounted_logits_bytes(job: Job) -> Number:
    """Full-size copies of the logits beyond the stack's switches, as a calibration found them: 0 without one.

    Also 0 where the loss is computed in pieces.

    Formula: coefficient ``logits_extra_copies`` * tokens * vocabulary * bytes of the compute dtype.
    Source: :class:`planner.domain.coefficients.Coefficients`.
    """
    if job.recipe.loss != "hf":
        return 0
    return job.coefficients.logits_extra_copies * job.tokens * job.model.vocab_size * job.regime.compute


def liger_bytes(job: Job) -> Number:
    """Bytes of Liger's fused linear cross-entropy.

    Counted: one chunk of logits and its fp32 copy, the input's gradient, and the head's gradient where the head is trained.

    Chunk rows: next power of two of tokens / ceil(vocabulary / hidden).  Source: Liger-Kernel 0.5
    ops/fused_linear_cross_entropy.py.
    """
    tokens, vocab, hidden = job.tokens, job.model.vocab_size, job.model.hidden_size
    chunk = minimum(ceil_pow2(ceil_div(tokens, ceil_div(vocab, hidden))), tokens)
    head_gradient = vocab * hidden * job.regime.compute if job.recipe.method == "full" else 0
    return chunk * vocab * (job.regime.compute + 4) + tokens * hidden * job.regime.compute + head_gradient


def normhead_forward_bytes(job: Job) -> int:
    """Bytes of the normalised head that Baichuan 2 computes on every training forward and keeps for backward.

    Formula: vocabulary * hidden in the head's dtype, and its 16-bit cast under autocast.  Source: baichuan-inc/Baichuan2-7B
    modeling_baichuan.py NormHead.forward.
    """
    if not job.model.normhead:
        return 0
    regime, elements = job.regime, job.model.head.weight_count
    return elements * (regime.outside + (regime.compute if regime.outside != regime.compute else 0))


def normhead_backward_bytes(job: Job) -> int:
    """Bytes that the backward of a trained normalised head adds.

    Counted: the gradient of the normalised weight, those of the division's two branches and of the norm: seven tensors of the
    head's size less the one that is kept.

    Source: torch 2.13 derivatives.yaml, ``div`` and ``linalg_vector_norm`` in torch/nn/functional.py normalize.
    """
    trains_head = job.recipe.method == "full"
    return 6 * job.model.head.weight_count * job.regime.outside if job.model.normhead and trains_head else 0


def head_dequant_bytes(job: Job) -> int:
    """16-bit cast of an fp32 head under autocast, alive in the loss (kept by the product; a frozen head is cast anew each time).

    Source: torch 2.13 aten/src/ATen/autocast_mode.cpp cached_cast, which caches only leaves that require a gradient.
    """
    regime = job.regime
    if (
        job.model.normhead
        or not regime.autocast
        or (regime.outside == regime.compute and (regime.quantized or not regime.recasts))
    ):
        return 0
    return job.model.head.weight_count * regime.compute


def head_backward_bytes(job: Job) -> Number:
    """Gradient of the 16-bit logits and of a trained head, alive together after the fp32 chain of the loss has gone.

    Formula: tokens * vocabulary in the compute dtype + vocabulary * hidden in the gradient's.  0 when the head is frozen.  In
    pieces: the sum of the head's gradients so far beside a piece's chain; and three of them where the first two are added,
    because the first is a view, to which autograd does not add in place.  Liger makes the head's gradient in the forward pass.
    Source: torch 2.13 derivatives.yaml, ``linear``, torch/csrc/autograd/input_buffer.cpp.  A normalised head counts its own.
    """
    gradient, loss = head_gradient_bytes(job), job.recipe.loss
    if loss == "liger" or not gradient:
        return 0
    if loss == "chunked":
        return maximum(3 * gradient, gradient + logits_backward_bytes(job))
    return job.tokens * job.model.vocab_size * job.regime.compute + gradient
