"""GPU seconds per micro-step, one group of kernels each."""

from __future__ import annotations

from planner.anatomy.regime import WIDE_BYTES
from planner.anatomy.work import Macs, Work, attention_forward_flop, matmul_flop, newton_schulz_flop
from planner.arrays import maximum, minimum, where
from planner.domain.recipe import GPTQ, Number, Recipe
from planner.throughput.job import Job
from planner.throughput.rotations import rotation_seconds

# Tensor cores are fed in units of 16 bytes; a product that cannot be takes about twice as long.
_ALIGNMENT_BYTES, _UNALIGNED = 16, 2.0
# Fused attention loses half a tile per row of tiles and the start of each: an A100 reaches 0.50 of its peak
# at 2,048 tokens and 0.58 at 8,192 (FlashAttention-2, arXiv 2307.08691), as s / (s + 463) does.  The
# coefficient is that at 4,096 tokens.
_ATTENTION_RAMP_TOKENS, _ATTENTION_TOKENS = 463, 4096
# Beside products a score needs its exponential, whatever the width of a head: as long as products of 15
# features take, so that on an A100 heads of 64 features reach 0.9 of what those of 128 do (FlashAttention-2,
# figure 4, unchecked: 171, 189 TFLOP/s, 16,384 tokens; 119, 133 at 1,024).  Heads above 128 features need
# more registers than that gains.
_SCORE_FEATURES, _USUAL_HEAD = 15, 128
# Accesses of one attention score when scores are written out, in bytes per element of the compute dtype (2)
# and of fp32 (4).  Forward: write, scale (2), add mask (2), upcast for softmax (r2), softmax fp32 (w4), cast
# (r4 w2), read for P@V.  Backward: dP write, upcast (r2 w4), softmax backward (r4 r4 w4), cast (r4 w2), scale
# (2), three reads.
_EAGER_FORWARD_BYTES, _EAGER_BACKWARD_BYTES = 24, 36
# Products of attention: two forward, four backward; a flash kernel computes the scores once more backward.
_BACKWARD_OVER_FORWARD, _FLASH_BACKWARD_OVER_FORWARD = 2.0, 2.5
# Bytes moved per weight to expand it once.  4-bit: read the stored bytes (0.56), write 16-bit.
# int8 backward: read 1, write 2, scale in place (4).  gptq without exllama: shift to int32 (read 0.5, write
# 4), cast (4 + 1), mask (2), subtract (2), scale (1 + 2) in qlinear_cuda_old, 16.5; with gathered zeros and
# scales 25.5 in qlinear_cuda; the mean, as models use either.  The other kernels write 16 bits once: awq
# reads 0.52, gptqmodel 0.52 and casts (4); aqlm reads 0.25 and scales in place (4).
_DEQUANTIZE_BYTES = {
    "nf4": 2.56,
    "fp4": 2.56,
    "int8": 7.0,
    "gptq-int4": 21.0,
    "gptq-int8": 25.0,
    "awq-int4": 2.52,
    "aqlm": 6.25,
}
_GPTQ_IN_ONE_BYTES = {"gptq-int4": 6.52, "gptq-int8": 7.02}


def matmul_seconds(job: Job) -> Number:
    """Large matrix products of one micro-step: every pass over dense matrices, experts and head; seconds.

    Formula: per pass, the larger of ``FLOP / rate x (1 + tile_rows / rows)`` and the time to read the weights
    once.  The bracket is tile and wave quantisation: a product of ``rows`` tokens occupies whole tiles.
    Writing the outputs follows the arithmetic of each tile
    (:func:`planner.throughput.traffic.product_traffic`).
    Source: NVIDIA, "Matrix Multiplication Background User's Guide", tile and wave quantization.
    Ignored: operands that arrive later than the arithmetic needs them.
    """
    work, tokens, rates = job.work, job.micro.computed, job.rates
    total = product_seconds(job, work.dense, tokens, 1.0) + head_seconds(job, tokens)
    if work.experts.forward:
        total = total + product_seconds(job, work.experts, tokens, work.expert_share)
    if job.recipe.numerics.quantization == "int8":
        total = total + _int8_extra_seconds(job, tokens)
    written = job.profile.traffic.products
    return (
        total
        + (job.passes * written.forward + job.backward_share * written.backward)
        * tokens
        / rates.memory_bytes_per_s
    )


def product_seconds(job: Job, macs: Macs, tokens: Number, share: float) -> Number:
    """Products in which ``share`` of the stored matrices sees each token:
    rows per matrix = tokens x share, all weights are read.

    Source: as :func:`matmul_seconds`.
    """
    rates, rows = job.rates, tokens * share
    compute = (
        matmul_flop(macs.total, tokens) / rates.matmul_flop_per_s * (1 + job.coefficients.tile_rows / rows)
    )
    reads = macs.total / share * job.regime.compute / rates.memory_bytes_per_s
    return maximum(compute, reads)


def head_seconds(job: Job, tokens: Number) -> Number:
    """The head's products; twice as long where rows of logits do not begin at multiples of 16 bytes,
    as with 50,257 words.

    An fp32 head that k-bit preparation made multiplies in fp32 where there is no autocast.
    Source: peft 0.21 utils/other.py prepare_model_for_kbit_training; NVIDIA, "Matrix Multiplication
    Background User's Guide", tensor core requirements: all else is slower without them;
    rasbt/LLMs-from-scratch, ch05 bonus on training speed: 50,257 to 50,304 words saves 8.8 of 73 ms, as long
    as its head needs.
    """
    tokens = tokens * scored_share(job.recipe)
    aligned = (
        job.regime.compute == 4 or job.scenario.model.vocab_size * job.regime.compute % _ALIGNMENT_BYTES == 0
    )
    seconds = product_seconds(job, job.work.head, tokens, 1.0) * (1.0 if aligned else _UNALIGNED)
    if job.regime.is_wide and job.regime.outside == WIDE_BYTES:
        return seconds * job.rates.matmul_flop_per_s / job.rates.fp32_flop_per_s
    return seconds


def _int8_extra_seconds(job: Job, tokens: Number) -> Number:
    """What LLM.int8 costs beside the 16-bit products it stands for; seconds per micro-step.

    Forward and recompute run at ``int8_relative_speed``.  The input gradient multiplies by the weight
    expanded to the dtype of the layer's input: after k-bit preparation that is fp32 for every matrix behind
    an fp32 norm, without tensor cores.
    Source: bitsandbytes 0.41 and 0.50 ``autograd/_functions.py`` MatMul8bitLt.backward
    (``CB.to(ctx.dtype_A)``).
    """
    macs, rates = job.profile.int8, job.rates
    slowdown = 1 / job.coefficients.int8_relative_speed - 1
    slower = matmul_flop(macs.forward, tokens) * job.passes / rates.matmul_flop_per_s * slowdown
    in_fp32 = matmul_flop(macs.input_gradient, tokens) * (
        1 / rates.fp32_flop_per_s - 1 / rates.matmul_flop_per_s
    )
    return slower + in_fp32


def attention_seconds(job: Job) -> Number:
    """Scores and weighted values of one micro-step; seconds.

    Fused kernels compute the causal half and 2.5 forwards backward at their own efficiency.  ``flash2`` drops
    padding and pairs outside a window.  ``sdpa`` computes the whole square as soon as padding, a window or a
    bias makes its mask explicit: with torch's memory-efficient kernel, which is as fast as the first
    FlashAttention.  ``eager`` computes the whole square with plain products and moves every score 24 bytes
    forward and 36 backward.
    Source: FlashAttention-2 (arXiv 2307.08691); transformers 5.23 ``integrations/sdpa_attention.py``,
    ``modeling_llama.py`` eager_attention_forward.  Ignored: score dropout, soft-capping, grouped keys and
    values expanded to all heads (below 3 %).
    """
    micro, work, rates = job.micro, job.work, job.rates
    if job.recipe.attention == "eager":
        flop = attention_forward_flop(work, micro.computed, micro.length, "square")
        heads = sum(part.layers * part.heads for part in work.attention)
        wide = job.regime.compute / 2
        moved = (
            (job.passes * _EAGER_FORWARD_BYTES + job.backward_share * _EAGER_BACKWARD_BYTES)
            * wide
            * heads
            * micro.computed
            * micro.length
        )
        backward = job.backward_share * _BACKWARD_OVER_FORWARD
        return (
            flop * (job.attention_passes + backward) / rates.matmul_flop_per_s
            + moved / rates.memory_bytes_per_s
        )
    ramp = attention_ramp(micro.length)
    both_ways = job.attention_passes + job.backward_share * _FLASH_BACKWARD_OVER_FORWARD
    passes = both_ways * ramp * _narrow_heads(work) * (1 + micro.spread**2)
    if job.recipe.attention == "flash2":
        flop = (
            attention_forward_flop(work, micro.computed, micro.length, "band")
            * (micro.real / micro.computed) ** 2
        )
        return flop * passes / rates.attention_flop_per_s
    seconds = (
        attention_forward_flop(work, micro.computed, micro.length, "triangle")
        * passes
        / rates.attention_flop_per_s
    )
    if micro.has_mask is False:
        return seconds
    square = attention_forward_flop(work, micro.computed, micro.length, "square")
    return where(micro.has_mask, square * passes / rates.masked_attention_flop_per_s, seconds)


def attention_ramp(length: Number) -> Number:
    """Time of fused attention over that at 4,096 tokens, for as much work.

    Source: FlashAttention-2 (arXiv 2307.08691), as above.
    """
    return (1 + _ATTENTION_RAMP_TOKENS / length) / (1 + _ATTENTION_RAMP_TOKENS / _ATTENTION_TOKENS)


def _narrow_heads(work: Work) -> float:
    """Time of fused attention over that of heads with 128 features;
    layers of several kinds count by their work.
    """
    features = sum(part.layers * part.features for part in work.attention)
    scores = sum(
        part.layers * part.features * (1 + _SCORE_FEATURES / min(part.features / part.heads / 2, _USUAL_HEAD))
        for part in work.attention
    )
    return scores / features / (1 + _SCORE_FEATURES / _USUAL_HEAD)


def elementwise_seconds(job: Job) -> Number:
    """Norms, residuals, rotary, activations and casts of one micro-step:
    bytes over memory bandwidth; seconds.

    Source: :mod:`planner.throughput.traffic`.
    """
    traffic = job.profile.traffic.elementwise
    return (
        (job.passes * traffic.forward + job.backward_share * traffic.backward)
        * job.micro.computed
        / job.rates.memory_bytes_per_s
    )


def weight_cast_seconds(job: Job) -> Number:
    """Autocast's 16-bit copies of fp32 weights:
    read 4 and write 2 bytes per parameter and forward pass; seconds per micro-step.

    Only weights that the stack keeps in fp32 under autocast; their gradients are cast back (6 bytes)
    when they are trained.
    Source: torch ``aten/src/ATen/autocast_mode.cpp`` (cached_cast keeps copies of trained leaves within one
    forward only).
    """
    regime = job.regime
    if not regime.autocast or regime.compute == 4:
        return 0.0
    params = job.profile.params
    inside = (
        params.block_rest + params.fused_experts + (0 if regime.quantized else params.quantizable)
    ) * int(regime.base == 4)
    outside = job.scenario.model.head.weight_count * int(regime.outside == 4)
    passes, full = job.passes + job.profile.trained_share, job.recipe.method == "full"
    return (
        (inside * passes + outside * (1 + int(full and job.profile.trains_head)))
        * 6.0
        / job.rates.memory_bytes_per_s
    )


def adapter_seconds(job: Job) -> Number:
    """The adapters' own kernels: products of rank width at the adapter's rate, and their traffic;
    seconds per micro-step.

    Formula: ``2 r (in + out)`` FLOP per token and pass, plus the bytes of
    :func:`planner.throughput.traffic.adapter_traffic`.  OFT's have no rank:
    :func:`planner.throughput.rotations.rotation_seconds`.
    Source: peft 0.21 ``tuners/lora/layer.py``.
    """
    if job.recipe.adapter is None:
        return 0.0
    tokens, traffic = job.micro.computed, job.profile.traffic.adapters
    flop = matmul_flop(job.work.adapters.total, tokens) * job.rank
    moved = (job.passes * traffic.forward + traffic.backward) * tokens
    seconds: Number = flop / job.rates.adapter_flop_per_s + moved / job.rates.memory_bytes_per_s
    if job.recipe.adapter.oft_block_size:
        return seconds + rotation_seconds(job, job.passes, 1, tokens)
    return seconds + _dora_seconds(job) if job.recipe.adapter.dora else seconds


# Accesses of one output of DoRA's branch in fp32 (4) and the compute dtype, beside those of LoRA.  Forward:
# magnitude times base (r w), times branch (w), sum of both (r r w), cast (r); backward: four products with
# sums (r r w r each), casts (r w).
_DORA_FORWARD_ACCESSES, _DORA_BACKWARD_ACCESSES = 7, 18


def _dora_seconds(job: Job) -> Number:
    """DoRA beside LoRA: the product of the factors, the norm of its sum with the weight,
    and the scaling; seconds per micro-step.

    Formula: per weight and forward pass, product (w), cast (r w), weight cast or dequantised (r w), scaled (r
    w), added (r r w), norm (r).  Per square of inputs an identity (w) and its cast (r w r), and
    ``2 r in (in + out)`` FLOP.
    Source: peft 0.21 ``tuners/lora/dora.py``.  Ignored: dropout, with which the base multiplies once more.
    """
    regime, sums = job.regime, job.profile.adapted
    wide, narrow = regime.adapter_seen, regime.compute
    read = _DEQUANTIZE_BYTES[job.recipe.numerics.quantization] + narrow if regime.quantized else regime.base
    weights = sums.weights * (2 * narrow + read + 8 * wide) + sums.squares * 2 * (wide + narrow)
    outputs = sums.outputs * job.micro.computed * 4
    by_token = outputs * (job.passes * _DORA_FORWARD_ACCESSES + _DORA_BACKWARD_ACCESSES)
    flop = 2 * job.rank * (sums.squares + sums.weights) * job.passes
    return (
        flop / job.rates.adapter_flop_per_s + (job.passes * weights + by_token) / job.rates.memory_bytes_per_s
    )


def logits_seconds(job: Job) -> Number:
    """Logits and loss without the head's products: vocabulary x tokens x bytes per logit;
    seconds per micro-step.

    A NormHead's normalisation of its weight is added.  A reward model has no logits of words; beside a value
    head they are written, read and widened, and nothing more.
    Source: :func:`planner.throughput.traffic.logits_bytes`.
    """
    model = job.scenario.model
    words = 0 if job.recipe.task == "reward" and not model.value_head else model.vocab_size
    by_logit = 2 * job.regime.compute + 4 if model.value_head else job.profile.logits_bytes
    tokens = job.micro.computed * scored_share(job.recipe)
    moved = words * tokens * by_logit + job.profile.normhead_bytes
    return moved / job.rates.memory_bytes_per_s


def scored_share(recipe: Recipe) -> Number:
    """Share of the tokens whose logits are made: those of completions, where these were generated.

    Source: trl 1.16.0 trainer/grpo_trainer.py (``logits_to_keep``).
    """
    if recipe.rollout is None:
        return 1.0
    return minimum(recipe.rollout.completion_tokens / recipe.batch.seq_len, 1.0)


# Instructions per weight of bitsandbytes' 4-bit kernel as long as it found values by nested branches, of
# which the threads of a warp take all: on an A100 of 40 GB it was 2.07 times slower than the one that
# replaced it, taken as memory-bound: 2.56 bytes at 0.8 of 1,555 GB/s, so 4.3e-12 s per weight, times 19.5e12
# instructions per s.  The same number makes it memory-bound on A10, L4 and RTX 4090 and 2.0 to 2.6 times
# slower on P100 and H100, as was seen there.
_BRANCHING_INSTRUCTIONS = 83


def expansion_seconds(job: Job) -> Number:
    """Seconds to expand every quantised weight once: by bytes moved,
    or by instructions where values are found by branches.

    Source: bitsandbytes pull request 1747 (2025-09): 1.36 to 2.07 times faster on A100 and H100 without
    branches, no faster for large matrices on A10, L4 and RTX 4090; switch ``unpacks_by_branches``.
    """
    quantization = job.recipe.numerics.quantization
    weights = job.profile.params.quantizable
    of_each = _DEQUANTIZE_BYTES[quantization]
    if job.scenario.stack.packed_kernels != "auto":
        of_each = _GPTQ_IN_ONE_BYTES.get(quantization, of_each)
    moved = weights * of_each / job.rates.memory_bytes_per_s
    issued = job.rates.instructions_per_s
    if quantization not in ("nf4", "fp4") or not job.scenario.stack.unpacks_by_branches or issued is None:
        return moved / job.coefficients.dequantize_relative_speed
    return (
        maximum(moved, weights * _BRANCHING_INSTRUCTIONS / issued)
        / job.coefficients.dequantize_relative_speed
    )


def dequantization_seconds(job: Job) -> Number:
    """Expanding quantised weights to the compute dtype; seconds per micro-step.

    4-bit: forward, recompute and backward (ignored:
    bitsandbytes from 0.50 on has a kernel without it up to 1,536 tokens).
    int8: backward.  gptq: each forward, which keeps the expanded weight for backward.  awq: as 4-bit, and
    backward copies the weight for each sample.  aqlm: as 4-bit.
    Source: bitsandbytes ``autograd/_functions.py``, ``backends/cuda/ops.py``; :mod:`planner.program.gptq`,
    :mod:`planner.program.awq`, :mod:`planner.program.aqlm`.
    """
    quantization = job.recipe.numerics.quantization
    if quantization == "none":
        return 0.0
    each = expansion_seconds(job)
    if quantization == "int8":
        return each
    if quantization in GPTQ and job.scenario.stack.packed_kernels != "triton":
        return each * job.passes
    if quantization == "awq-int4":
        copied = (
            job.profile.params.quantizable * (2 + 2 * job.recipe.batch.rows) / job.rates.memory_bytes_per_s
        )
        return each * (job.passes + 1) + copied
    return each * (job.passes + 1)


# Bytes per trained parameter that one update moves, for 4-byte states.  adamw_torch (foreach): decay 2, lerp
# 3, scale 2, addcmul 4, root 2, divide 2, add 2, addcdiv 4 accesses of 4 bytes; fused: read p g m v, write p
# m v.  adam_mini: square 2, mean 1, decay 2, lerp 3, scale 2, learning rate 2, negative 2, add 3.  muon:
# momentum 5, nesterov 3, decay 2, add 3, beside its products.  torchao in two kernels: read p g m v, write
# both moments; read them and p g m v, write p m v, in 4 bits with the codes as int64.  rmsprop: scale 2,
# addcmul 4, root 2, add 2, addcdiv 4.  badam: as adamw_torch, and 12 for copies of gradients and weights
# between 16 bits and fp32.  apollo: project 1, scale 2, norm 1, limit 2, factor 2, add 3, for matrices, which
# are most.
_UPDATE_BYTES = {
    "adamw_torch": 84,
    "adamw_torch_fused": 28,
    "adamw_8bit": 16,
    "adamw_torch_8bit": 38,
    "adamw_torch_4bit": 62,
    "paged_adamw_32bit": 28,
    "paged_adamw_8bit": 16,
    "adafactor": 40,
    "sgd": 12,
    "rmsprop": 56,
    "lion": 20,
    "adam_mini": 68,
    "muon": 52,
    "apollo_adamw": 44,
    "apollo_adamw_layerwise": 44,
    "badam": 96,
}
# Gradient norm (read) and clipping (read, write), the default of the Trainer.
_CLIP_ACCESSES = 3
# Operators that the host issues per trained tensor: bitsandbytes updates tensors one by one (about six calls
# each; a compiled step of torchao: its buffers and kernels), the others hand lists of tensors to one kernel
# (about one call's worth per tensor for building lists, clipping and zeroing).
_UPDATE_OPERATORS = {
    "adamw_8bit": 6,
    "adamw_torch_8bit": 8,
    "adamw_torch_4bit": 11,
    "paged_adamw_32bit": 6,
    "paged_adamw_8bit": 6,
    "adam_mini": 14,
    "muon": 45,
    "apollo_adamw": 25,
    "apollo_adamw_layerwise": 25,
}
# DeepSpeed copies 16-bit gradients to fp32 and the new fp32 weights to 16-bit: 6 bytes each.
_ENGINE_COPY_BYTES = 12


def optimizer_seconds(job: Job) -> Number:
    """Update of the trained parameters on the GPU, clipping, and accumulation of gradients between
    micro-steps; seconds per step.

    Formula: bytes per parameter of the implementation x parameters (this rank's share under ZeRO and FSDP),
    at least the time to issue the calls.
    Source: torch ``optim/adam.py`` (_multi_tensor_adam operators counted), bitsandbytes
    ``optim/optimizer.py``, ``csrc/kernels.cu``.
    Ignored: paging of paged optimizers while everything fits.
    """
    recipe, regime = job.recipe, job.regime
    params = job.trained_params
    share = params / (job.world / recipe.parallel.tensor) if recipe.sharding.divides_optimizer else params
    accumulate = 3 * regime.gradient * params * (recipe.batch.grad_accum - 1)
    if recipe.offloads_optimizer:
        return accumulate / job.rates.memory_bytes_per_s
    engine = _ENGINE_COPY_BYTES if regime.engine == "deepspeed" and regime.master else 0
    update = (
        share * (_UPDATE_BYTES[recipe.optimizer] * regime.state / 4 + engine)
        + share * _CLIP_ACCESSES * regime.gradient
    )
    issue = job.trained_tensors * _UPDATE_OPERATORS.get(recipe.optimizer, 1) * job.coefficients.launch_s
    products = (
        newton_schulz_flop(job.scenario.model) / job.rates.matmul_flop_per_s
        if recipe.optimizer == "muon"
        else 0
    )
    return maximum((update + accumulate) / job.rates.memory_bytes_per_s, issue) + products
