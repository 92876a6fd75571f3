"""How long kernels take: what they multiply and move over the rates of the card."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from planner.anatomy.adapted_matrices import is_adapted
from planner.arrays import maximum, minimum
from planner.domain.model import ModelSpec
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.domain.recipes.recipe import Adapter, Number
from planner.domain.scenario import CUDNN_HEADS
from planner.domain.stack import Stack
from planner.program.ops.tensors import ELEMENT_BYTES, Unit
from planner.program.ops.work import FusedAttention, Product, Unpacking
from planner.program.parameters import n_tensors
from planner.throughput.time_inputs import TimedJob

FLOP_PER_MAC = 2
# Tensor cores are fed in units of 16 bytes; a product that cannot be takes about twice as long.
_UNALIGNED = 2.0
# Chunks of 64 tokens give tensor cores small products one after the other, so that multiprocessors set the
# pace and not those: beside their bytes kernels of flash-linear-attention do so much FLOP for each
# instruction that the card can issue.  96 heads of 128 features on 8,192 tokens take 1.20 ms forward and 4.18
# backward on a B200 (5.0, 3.5; pytorch/helion examples/linear/BENCHMARKS.md), 3.20 forward on an H20 (2.8;
# MoonshotAI/FlashKDA BENCHMARK_H20.md).
_CHUNKED_FLOP_PER_INSTRUCTION = 3.5
# Beside products a score needs its exponential, whatever the width of a head: as long as products of 15
# features take, so that on an A100 heads of 64 features reach 0.9 of what those of 128 do (FlashAttention-2,
# figure 4, unchecked: 171, 189 TFLOP/s, 16,384 tokens; 119, 133 at 1,024).  Heads above 128 features need
# more registers than that gains.
_SCORE_FEATURES, _USUAL_HEAD = 15, 128
# Above 128 features torch's memory-efficient kernel cannot hold its results in registers: it adds each tile's
# share to device memory (``kOutputInRF``, ``kKeepOutputInRF``), and the pace is set by multiprocessors, not
# by tensor cores.  Heads of 512 features, FLOP for each instruction that a card can issue, forward and
# backward: H200 3.9 and 1.3, B200 4.6 and 1.3, H20 2.8 and 1.2, L20 2.0 and 1.0 (xlite-dev/ffpa-attn
# bench/README.md at 92e1d3b, column SDPA, causal); for older cards no measurement was found.
_WIDE_FLOP_PER_INSTRUCTION, _WIDE_BACKWARD = 4.0, 1.3
# Of DeepSeek, whose heads cuDNN's kernel takes on newer cards, too.
_DEEPSEEK_HEAD = (192, 128)


def product_seconds(job: TimedJob, kind: Product, macs: Number, values: Mapping[Unit, Number]) -> Number:
    """Products of matrices that run alike; seconds.

    Formula: the larger of ``FLOP / rate x (1 + tile_rows / rows)`` and the time to read the weights once.
    The bracket is tile and wave quantisation: a product of ``rows`` tokens occupies whole tiles, and pieces
    of a loss are cut so that they do.  What
    products write follows the arithmetic of each tile and is counted with them.  Twice as long where rows of
    the result do not begin at multiples of 16 bytes.  Products of LLM.int8 have their own speed, which holds
    all that is done beside them.  Those in fp32 run without tensor cores; those in fp8 reach as much of their
    peak as those in 16 bits.  Those of a delta rule's chunks are bound by instructions.
    Source: NVIDIA, "Matrix Multiplication Background User's Guide", tile and wave quantization, tensor core
    requirements; CUTLASS ``efficient_gemm.md`` (main loop and epilogue); rasbt/LLMs-from-scratch, ch05 bonus
    on training speed: 50,257 to 50,304 words saves 8.8 of 73 ms, as long as its head needs.
    Ignored: operands that arrive later than the arithmetic needs them.
    """
    rates = job.rates
    rate: Number = rates.fp32_flop_per_s if kind.dtype == "fp32" else rates.matmul_flop_per_s
    if kind.dtype == "fp8":
        assert rates.fp8_flop_per_s is not None
        rate = rates.fp8_flop_per_s
    if kind.dtype == "int8":
        rate = rate * job.coefficients.int8_relative_speed
    if kind.chunked and rates.instructions_per_s is not None:
        rate = minimum(rate, _CHUNKED_FLOP_PER_INSTRUCTION * rates.instructions_per_s)
    seconds = FLOP_PER_MAC * macs / rate
    if kind.rows is None:
        return seconds
    rows = values[kind.rows[0]] * kind.rows[1]
    lost = 0.0 if kind.rows[0] is Unit.PIECE_TOKENS else job.coefficients.tile_rows / rows
    reads = macs / rows * ELEMENT_BYTES[kind.dtype] / rates.memory_bytes_per_s
    return maximum(seconds * (1 + lost), reads) * (1.0 if kind.aligned else _UNALIGNED)


def attention_seconds(
    job: TimedJob, kind: FusedAttention, macs: float, values: Mapping[Unit, Number]
) -> Number:
    """Calls of a fused attention kernel, of ``macs`` for each pair of a query and a key; seconds.

    Formula: FLOP of the pairs that it computes over its rate.  Backward it computes the scores again: five
    products for the two of forward.  Without a mask that is the causal half; FlashAttention's package leaves
    out padding and what a window hides.  With a mask (padding, a window, a bias) torch takes its
    memory-efficient kernel and computes the whole square.  Towers see whole pieces: a window or an image
    each.
    Source: FlashAttention-2 (arXiv 2307.08691); transformers 5.23 ``integrations/sdpa_attention.py``;
    :mod:`planner.program.ops.kernels`.
    """
    micro, batch = job.micro, job.recipe.batch
    slower = (1 + _SCORE_FEATURES / min(kind.width, _USUAL_HEAD)) / (1 + _SCORE_FEATURES / _USUAL_HEAD)
    keys, rows = micro.length, micro.computed
    if kind.pairs == "piece":
        keys = minimum(kind.window or values[Unit.IMAGE_PATCHES], values[Unit.IMAGE_PATCHES])
        rows = values[Unit.PATCHES] if batch.images else rows
    pairs = rows * mean_keys(kind, keys)
    if kind.pairs != "piece":
        pairs = pairs * (1 + micro.spread**2)
    if kind.pairs == "band":
        pairs = pairs * (micro.real / micro.computed) ** 2
    return FLOP_PER_MAC * macs * pairs * slower / attention_rate(job, kind)


def attention_rate(job: TimedJob, kind: FusedAttention) -> Number:
    """Sustained FLOP/s of one attention kernel.

    Formula: cuDNN's where torch asks it first and it takes the heads; FlashAttention's; or that of the
    kernel that takes masks, as fast as the first FlashAttention, above 128 features as instructions allow.
    Source: torch 2.13 ``ATen/native/transformers/cuda``: sdp_utils.cpp ``check_cudnn_tensor_shapes``,
    mem_eff_attention/kernels/generate_kernels.py, kernel_backward.h.
    """
    rates = job.rates
    if rates.cudnn_attention_flop_per_s is not None and _fits_cudnn(job, kind):
        return rates.cudnn_attention_flop_per_s
    if kind.kernel == "flash":
        return rates.attention_flop_per_s
    if max(kind.widths) <= _USUAL_HEAD or rates.instructions_per_s is None:
        return rates.masked_attention_flop_per_s
    per_instruction = _WIDE_BACKWARD if kind.backward else _WIDE_FLOP_PER_INSTRUCTION
    return minimum(rates.masked_attention_flop_per_s, per_instruction * rates.instructions_per_s)


def _fits_cudnn(job: TimedJob, kind: FusedAttention) -> bool:
    widest = CUDNN_HEADS[job.scenario.hardware.gpu.compute_capability]
    return max(kind.widths) <= widest or kind.widths == _DEEPSEEK_HEAD


def mean_keys(kind: FusedAttention, length: Number) -> Number:
    """Keys that a kernel computes for a query on average.

    Formula: the length ``s``; of the causal triangle ``(s + 1) / 2``; with a window of ``w < s`` tokens
    ``w - w (w - 1) / (2 s)``.
    Source: counting the pairs of a (banded) lower triangle.
    """
    if kind.pairs in ("square", "piece"):
        return length
    if kind.pairs == "triangle" or kind.window is None:
        return (length + 1) / 2
    width = minimum(length, kind.window)
    return width - width * (width - 1) / (2 * length)


def moving_seconds(job: TimedJob, n_bytes: Number) -> Number:
    """Operators that take as long as device memory needs for what they read and write; seconds.

    Formula: bytes over memory bandwidth.  Each operator reads its inputs and writes its output once; caches
    are far smaller than these tensors at training sizes.
    Source: the operators of :mod:`planner.program`, which name the code.
    """
    return n_bytes / job.rates.memory_bytes_per_s


def start_seconds(job: TimedJob, n_kernels: Number) -> Number:
    """What kernels take whatever they move or multiply: they fill the card, run empty,
    and the next one begins; seconds.

    Formula: kernels x time for each.
    Source: te42kyfo/gpu-benches, gpu-small-kernels, which fits streams of kernels of all sizes as
    ``T = V / (a + V / b)``; coefficient ``kernel_s`` is that ``a`` where the data does not fit the cache.
    """
    return n_kernels * job.coefficients.kernel_s


# Instructions per weight of bitsandbytes' 4-bit kernel as long as it found values by nested branches, of
# which the threads of a warp take all: on an A100 of 40 GB it was 2.07 times slower than the one that
# replaced it, taken as memory-bound: 2.56 bytes at 0.89 of 1,555 GB/s, so 3.8e-12 s per weight, times 19.5e12
# instructions per s.  The same number makes it memory-bound on A10, L4 and RTX 4090 and 2.0 to 2.6 times
# slower on P100 and H100, as was seen there.
_BRANCHING_INSTRUCTIONS = 75


def expansion_seconds(job: TimedJob, kind: Unpacking, weights: Number) -> Number:
    """Weights of 4 bits expanded for their products; seconds.

    Formula: bytes over memory bandwidth, or instructions where values are found by branches.
    Source: bitsandbytes pull request 1747 (2025-09): 1.36 to 2.07 times faster on A100 and H100 without
    branches, no faster for large matrices on A10, L4 and RTX 4090; switch ``unpacks_by_branches``;
    :mod:`planner.program.weights.four_bit`.
    Ignored: bitsandbytes from 0.50 on has a kernel without it up to 1,536 tokens.
    """
    moved, issued = moving_seconds(job, weights * kind.weight_bytes), job.rates.instructions_per_s
    if not job.scenario.stack.unpacks_by_branches or issued is None:
        return moved
    return maximum(moved, weights * _BRANCHING_INSTRUCTIONS / issued)


# Gradient norm (read) and clipping (read, write), the default of the Trainer.
_CLIP_ACCESSES = 3
# DeepSpeed copies 16-bit gradients to fp32 and the new fp32 weights to 16-bit: 6 bytes each.
_ENGINE_COPY_BYTES = 12


def optimizer_seconds(job: TimedJob) -> Number:
    """Kernels of the update of the trained parameters on the GPU, clipping, and accumulation of gradients
    between micro-steps; seconds per step.

    Formula: bytes per parameter of the implementation x parameters (this rank's share under ZeRO and FSDP).
    Source: torch ``optim/adam.py`` (_multi_tensor_adam operators counted), bitsandbytes
    ``optim/optimizer.py``, ``csrc/kernels.cu``.
    Ignored: paging of paged optimizers while everything fits; the decompositions of GaLore.
    """
    recipe, regime = job.recipe, job.regime
    params = job.own.trained
    share = job.own.updated
    accumulate = 3 * regime.gradient * params * (recipe.batch.grad_accum - 1)
    if recipe.offloads_optimizer:
        return accumulate / job.rates.memory_bytes_per_s
    engine = _ENGINE_COPY_BYTES if regime.engine == "deepspeed" and regime.master else 0
    facts = OPTIMIZER_FACTS[recipe.optimizer]
    update = (
        share * (facts.moved_bytes * regime.state / 4 + engine) + share * _CLIP_ACCESSES * regime.gradient
    )
    products = _update_flop(job) / job.rates.matmul_flop_per_s
    return (update + accumulate) / job.rates.memory_bytes_per_s + products


def _update_flop(job: TimedJob) -> Number:
    """FLOP of an update's products: Muon's, and those that make gradients narrow and updates wide (APOLLO,
    GaLore).
    """
    recipe, model, stack = job.recipe, job.scenario.model, job.scenario.stack
    if recipe.optimizer == "muon":
        return newton_schulz_flop(model, stack, recipe.adapter)
    products = OPTIMIZER_FACTS[recipe.optimizer].projects * (recipe.optimizer_rank or 0)
    return FLOP_PER_MAC * products * orthogonalized_params(model, stack) if products else 0


def update_launch_seconds(job: TimedJob) -> Number:
    """Host time to issue the update, hidden as long as its kernels run; seconds per step.

    Formula: trained tensors x operators for each x time per operator.
    Source: as of :func:`optimizer_seconds`; coefficient ``launch_s``.
    """
    if job.recipe.offloads_optimizer:
        return 0.0
    return job.trained_tensors * OPTIMIZER_FACTS[job.recipe.optimizer].operators * job.coefficients.launch_s


def walk_seconds(job: TimedJob) -> Number:
    """Walks of the host through all modules around the update, while the GPU has nothing to do; seconds per
    step.

    Formula: the time of one operator for each module, where Transformers' Trainer runs.
    The test of the loss for NaN has waited for the backward pass before.
    Source: transformers 5.23 trainer.py (floating_point_ops, _clip_grad_norm, zero_grad), torch 2.13
    ``nn/modules/module.py`` named_modules.  A Trainer with 340 modules and 338 trained tensors spends 8.2 ms
    behind the backward pass, and 10.4 us per operator of its layers, on a CPU without a GPU.
    Ignored: micro-steps before the last one, which walk twice.
    """
    if not job.scenario.stack.runs_trainer:
        return 0.0
    return job.called_modules * job.coefficients.launch_s


@lru_cache(maxsize=64)
def orthogonalized_params(model: ModelSpec, stack: Stack) -> int:
    """Elements of the matrices that Muon orthogonalises, and that APOLLO and GaLore project: all of the
    layers but experts in one tensor.

    Source: as of :func:`newton_schulz_flop`.
    """
    return sum(
        group.count * linear.weight_count
        for group in model.groups
        for linear in group.block.linears
        if n_tensors(stack, linear) == linear.copies
    )


def newton_schulz_flop(model: ModelSpec, stack: Stack, adapter: Adapter | None = None) -> Number:
    """FLOP of Muon's five iterations over every matrix of the layers, or both factors of each adapter:
    ``X X^T``, its square, and a product with ``X``.

    Experts in one tensor have none, and one adapter, with a rank for each of them.
    Source: llamafactory 0.9.5 third_party/muon/muon.py zeropower_via_newtonschulz5,
    train/trainer_utils.py _create_muon_optimizer (two dimensions); :mod:`planner.program.parameters`.
    Ignored: that frozen layers have none.
    """
    iterations = 5
    total: Number = 0
    for group in model.groups:
        for linear in group.block.linears:
            sides, tensors = (linear.in_features, linear.out_features), n_tensors(stack, linear)
            products: Number = 0
            if adapter is None:
                products = _products(*sides) if tensors == linear.copies else 0
            elif is_adapted(linear, adapter.targets):
                rank = adapter.rank * linear.rank_factor * linear.copies // tensors
                products = sum(_products(side, rank) for side in sides)
            total += group.count * tensors * iterations * FLOP_PER_MAC * products
    return total


def _products(rows: Number, columns: Number) -> Number:
    shorter = minimum(rows, columns)
    return 2 * rows * columns * shorter + shorter**3
