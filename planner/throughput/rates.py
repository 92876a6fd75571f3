"""What the hardware sustains: arithmetic, memory, links, host."""

from __future__ import annotations

from dataclasses import dataclass

from planner.anatomy.regime import WIDE_BYTES, Regime
from planner.arrays import minimum
from planner.domain.hardware import GpuSpec, Hardware, MatmulShapes, server_of
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS
from planner.domain.recipes.recipe import Number, Recipe
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.units import GIGA

# One direction of one lane, after line coding (8b/10b does not apply from generation 3 on):
# PCI-SIG base specifications.
_PCIE_LANE_BYTES_PER_S = {
    1: 0.25 * GIGA,
    2: 0.5 * GIGA,
    3: 0.985 * GIGA,
    4: 1.969 * GIGA,
    5: 3.938 * GIGA,
    6: 7.563 * GIGA,
}
_ASSUMED_PCIE_GENERATION = 3
_PCIE_LANES = 16
# What NCCL assumes between two sockets of a Skylake-class host: nccl src/graph/topo.h SKL_QPI_BW.
_INTER_SOCKET_BYTES_PER_S = 10 * GIGA
# GeForce cards run tensor cores at half rate when they accumulate in fp32;
# int8 shows the full rate (int8 = 4 x, not 2 x).
_HALF_RATE_RATIO = 3.0
# The best product of an A100 SXM, whose efficiencies are the reference of the coefficient, as a share of its
# 312 TFLOP/s: 271.2 in a search over shapes, 264.5 among square ones.
_REFERENCE_BEST_SHARE: dict[MatmulShapes, float] = {"any": 0.869, "square": 0.848}
# Part of its usual share of the peak that fused attention reaches, by compute capability: FlashAttention 1
# and 2 where tensor cores reach their peak with asynchronous products only, and what MI300X have for it.
_FLASH_SHARE = {"9.0": 0.6, "10.0": 0.3, "10.3": 0.3, "gfx942": 0.3}
# FlexAttention is compiled by Triton, whose kernel FlashAttention-4 beats 2.7 times there (its authors).
_FLEX_SHARE = {"10.0": 0.37, "10.3": 0.37}
# An A100's tensor cores do this many times the work of 128 lanes in fp32: what the older products reach.
_OLDER_PRODUCTS_OVER_FP32 = 8.0
# Compute capabilities for which there is no FlashAttention 2; torch takes its memory-efficient kernel there.
_WITHOUT_FLASH = ("7.0", "7.2", "7.5")


@dataclass(frozen=True, slots=True)
class Rates:
    """Sustained rates of one GPU and its links.

    ``peak_flop_per_s`` is the rated dense peak (the denominator of utilisation).  ``matmul``, ``attention``
    and ``fp32`` are the sustained FLOP/s of products in 16 bits, of fused attention and of products in fp32.
    ``masked_attention`` is that of the fused kernel that takes any mask, ``cudnn_attention`` that of cuDNN's,
    which torch asks first; ``None`` where it does not.  ``memory``: bytes/s.
    ``host_link``: bytes/s of one GPU to or from its host.  ``collective``: bytes/s that each GPU receives in
    a ring.  ``network``: the same between nodes.  ``instructions``: instructions of single threads per s,
    ``None`` where the card is not NVIDIA's.  ``fp8``: products of 8-bit floats, ``None`` where nobody knows
    it.
    """

    peak_flop_per_s: float
    matmul_flop_per_s: Number
    attention_flop_per_s: Number
    masked_attention_flop_per_s: Number
    fp32_flop_per_s: Number
    memory_bytes_per_s: Number
    host_link_bytes_per_s: Number
    collective_bytes_per_s: Number
    network_bytes_per_s: Number
    instructions_per_s: Number | None = None
    fp8_flop_per_s: Number | None = None
    cudnn_attention_flop_per_s: Number | None = None


def rates_of(scenario: Scenario, regime: Regime, coefficients: Coefficients) -> Rates | None:
    """Sustained rates, or ``None`` when the card's compute rate or memory bandwidth is unknown."""
    hardware, recipe = scenario.hardware, scenario.recipe
    gpu = hardware.gpu
    peak = peak_flop_per_s(gpu, _compute_dtype(recipe, regime))
    if peak is None or gpu.memory_bandwidth_bytes_per_s is None or _lacks_fp8(recipe, gpu):
        return None
    sustained = coefficients.gpu_rate * clock_share(hardware)
    fp32 = (gpu.fp32_flop_per_s or peak) * coefficients.fp32_matmul_efficiency * sustained
    reached = _product_efficiency(gpu, coefficients) * sustained
    matmul = fp32 if regime.compute == WIDE_BYTES else peak * reached
    usual, masked, cudnn = _attention_rates(scenario, regime, coefficients, peak * sustained)
    inside = intra_node_bytes_per_s(hardware, coefficients)
    network = _network_bytes_per_s(hardware, coefficients)
    return Rates(
        peak_flop_per_s=peak,
        matmul_flop_per_s=matmul,
        attention_flop_per_s=usual,
        masked_attention_flop_per_s=masked,
        fp32_flop_per_s=fp32,
        memory_bytes_per_s=gpu.memory_bandwidth_bytes_per_s
        * coefficients.memory_efficiency
        * coefficients.gpu_rate,
        host_link_bytes_per_s=pcie_bytes_per_s(hardware) * coefficients.pcie_efficiency,
        collective_bytes_per_s=inside if hardware.nodes == 1 else minimum(inside, network),
        network_bytes_per_s=network,
        instructions_per_s=_instructions_per_s(gpu, sustained),
        fp8_flop_per_s=_fp8_flop_per_s(gpu, coefficients, sustained),
        cudnn_attention_flop_per_s=cudnn,
    )


def _attention_rates(
    scenario: Scenario, regime: Regime, coefficients: Coefficients, peak: Number
) -> tuple[Number, Number, Number | None]:
    """FLOP/s of fused attention, of the kernel that takes any mask, and of cuDNN's where torch asks it first.

    Formula: their shares of ``peak``.  Torch's own take fp32 as it is, without tensor cores and what these
    reach, and cuDNN's takes none; FlashAttention's package is given 16 bits.
    Source: coefficients ``attention_efficiency`` and ``attention_efficiency_flash1``; cuDNN 1.7 to 2.3 times
    as fast as FlashAttention 2 on H100, both ways (huggingface/transformers#48163).
    """
    gpu, recipe, generation = scenario.hardware.gpu, scenario.recipe, scenario.stack.flash_generation
    is_wide = regime.is_wide or regime.compute == WIDE_BYTES
    in_fp32 = is_wide and not ATTENTION_FACTS[recipe.attention].is_flash
    if in_fp32 and gpu.fp32_flop_per_s is not None:
        peak = gpu.fp32_flop_per_s * coefficients.gpu_rate * clock_share(scenario.hardware)
    old_share = 1.0 if in_fp32 else _flash_share(gpu, 1)
    usual = masked = peak * coefficients.attention_efficiency_flash1 * old_share
    if generation > 1 and gpu.compute_capability not in _WITHOUT_FLASH:
        share = _flex_share(gpu) if recipe.attention == "flex" else _flash_share(gpu, generation)
        usual = peak * coefficients.attention_efficiency * (1.0 if in_fp32 else share)
    asks_cudnn = scenario.runs_cudnn and not in_fp32
    return usual, masked, peak * coefficients.attention_efficiency if asks_cudnn else None


def _product_efficiency(gpu: GpuSpec, coefficients: Coefficients, *, fp8: bool = False) -> Number:
    """Share of the rated peak that large products reach at the rated clock."""
    if accumulates_at_half_rate(gpu):
        return coefficients.matmul_efficiency_half_rate * reached_share(gpu, fp8=fp8)
    return coefficients.matmul_efficiency * reached_share(gpu, fp8=fp8)


def _fp8_flop_per_s(gpu: GpuSpec, coefficients: Coefficients, sustained: Number) -> Number | None:
    if gpu.fp8_flop_per_s is None:
        return None
    return gpu.fp8_flop_per_s * _product_efficiency(gpu, coefficients, fp8=True) * sustained


def _lacks_fp8(recipe: Recipe, gpu: GpuSpec) -> bool:
    narrow = recipe.numerics.fp8 != "none" or recipe.numerics.quantization == "fp8"
    return narrow and gpu.fp8_flop_per_s is None


def _network_bytes_per_s(hardware: Hardware, coefficients: Coefficients) -> Number:
    """Sustained bytes/s from one node to others: the host's links, or what servers of the card have."""
    unnamed = (
        hardware.gpus_per_node * coefficients.network_bytes_per_s_per_gpu * server_of(hardware.gpu).network
    )
    return (hardware.network_bytes_per_s or unnamed) * coefficients.network_efficiency


def peak_flop_per_s(gpu: GpuSpec, dtype: str) -> float | None:
    """Rated dense FLOP/s for products of ``dtype``; without units for it, the fp32 rate;
    ``None`` when that is unknown too.
    """
    rate: float | None = getattr(gpu, f"{dtype}_flop_per_s")
    return rate if rate is not None else gpu.fp32_flop_per_s


def _instructions_per_s(gpu: GpuSpec, sustained: Number) -> Number | None:
    """Instructions that all threads together issue per second: 128 per multiprocessor and cycle.

    The rated fp32 rate counts two operations of 64 lanes per multiprocessor on Volta, Turing and A100, which
    is the same number, and of 128 lanes elsewhere, which is twice as much.
    Source: NVIDIA CUDA C++ programming guide, arithmetic instructions: throughput by compute capability,
    four schedulers each.
    """
    if not gpu.is_cuda or gpu.fp32_flop_per_s is None:
        return None
    lanes_in_half = gpu.compute_capability in ("7.0", "7.2", "7.5", "8.0")
    return gpu.fp32_flop_per_s * (1.0 if lanes_in_half else 0.5) * sustained


def _compute_dtype(recipe: Recipe, regime: Regime) -> str:
    if regime.compute == WIDE_BYTES:
        return "fp32"
    named = recipe.numerics.compute_dtype
    return named if named != "fp32" else recipe.numerics.load_dtype


def accumulates_at_half_rate(gpu: GpuSpec) -> bool:
    """Whether fp32 accumulation halves the tensor-core rate, as on GeForce cards.

    Source: NVIDIA Ada whitepaper v2.1 appendix A (RTX 4090: FP16 with FP32 accumulate 165, INT8 661),
    GA102 whitepaper.
    """
    half = gpu.bf16_flop_per_s or gpu.fp16_flop_per_s
    return bool(half and gpu.int8_op_per_s and gpu.int8_op_per_s / half > _HALF_RATE_RATIO)


def reached_share(gpu: GpuSpec, *, fp8: bool = False) -> float:
    """Best 16-bit product that was measured on the card, as a share of its peak,
    over that of the reference; 1 where unknown.  ``fp8``: the same of products of 8-bit floats, those of 16
    bits where nobody measured them.

    The efficiency of large products is known for A100 best; cards that power or libraries limit reach less of
    their peak.  The reference is an A100 SXM measured in the same way; cards that accumulate at half rate
    boost above the rated clock and reach all of it (RTX 4090).  Cards of a chip that was measured under
    another name have its share.
    Source: stas00/ml-engineering, Maximum Achievable Matmul FLOPS: A100 SXM 0.87, H100 SXM 0.80, B200 0.78,
    MI300X 0.51, in fp8 H100 0.71, B200 0.76.  AMD's page on achievable FLOPs: MI300X 0.49 in fp8.
    zzc0721/torch-performance-test-data: A100 SXM 0.85, H100 PCIe 0.66, L40S 0.74, RTX 3090 1.08,
    RTX 5090 1.14.  A T4 has 0.65 in single products and 0.37 in a row of them, where its 70 W set the clock
    (forums.developer.nvidia.com/t/about-gpu-peak-performance/264462).
    """
    best, rated = gpu.best_matmul_flop_per_s, gpu.bf16_flop_per_s or gpu.fp16_flop_per_s
    shapes = gpu.best_matmul_shapes
    if fp8 and gpu.best_fp8_matmul_flop_per_s is not None:
        # Whoever measured those searched over shapes.
        best, rated, shapes = gpu.best_fp8_matmul_flop_per_s, gpu.fp8_flop_per_s, "any"
    if best is None or shapes is None or rated is None:
        return 1.0
    reference = 1.0 if accumulates_at_half_rate(gpu) else _REFERENCE_BEST_SHARE[shapes]
    return best / rated / reference


def _flash_share(gpu: GpuSpec, generation: int) -> float:
    """Part of the usual share of the peak that fused attention reaches on a card; the third generation and
    the fourth, which NVIDIA's cards alone have, reach all of it.

    Source: FlashAttention-2 (arXiv 2307.08691) section 4.1: forward and backward 0.3 of the peak on H100, 0.5
    on A100, 2k to 8k tokens; FlashAttention-3 (arXiv 2407.08608) section 1 says why.  B200: 300 to 346 of
    2,250 TFLOP/s at 1k to 16k tokens, hardly more than an H100 (Dao-AILab/flash-attention#1589), and the same
    is taken for B300.  FlashAttention-4 (its authors' summary) reaches up to 1,613 TFLOP/s there, 1.3 times
    cuDNN's kernel and 2.7 times Triton's.  MI300X: 223 to 232 of 1,307 TFLOP/s at 16,384 tokens
    (ROCm/flash-attention#142), 0.17 where an A100 has 0.58.  The tensor cores of an H20 do half of an A100's
    work per clock, so that the older products reach their peak, too: a step with the second generation takes
    1.1 times one with the third (modelscope/ms-swift examples/train/flash_attention_3).
    """
    half, single = gpu.bf16_flop_per_s, gpu.fp32_flop_per_s
    slow = bool(half and single and half / single <= _OLDER_PRODUCTS_OVER_FP32)
    if gpu.is_cuda and (generation >= 3 or slow):
        return 1.0
    return _FLASH_SHARE.get(gpu.compute_capability, 1.0)


def _flex_share(gpu: GpuSpec) -> float:
    """The same of FlexAttention, which is taken for FlashAttention 2 where nobody compared it."""
    return _FLEX_SHARE.get(gpu.compute_capability, _flash_share(gpu, 2))


def clock_share(hardware: Hardware) -> float:
    """Clock of the multiprocessors under a power limit, as a share of the clock without one;
    1 where there is none.

    Formula: sqrt(limit / rated power).  The memory keeps its clock.
    Source: an RTX 3090 of 390 W loses 10 to 20 % of training speed at 280 W and 20 % at 230 W
    (blog.qwertyforce.dev/posts/optimal_power_limit), one of 350 W loses 5 % at 280 W (pugetsystems.com, guide
    1974).
    Ignored: the chip's reserve, by which the first tenth of the power costs almost nothing.
    """
    limit, rated = hardware.power_limit_w, hardware.gpu.tdp_w
    return 1.0 if limit is None or rated is None else min(1.0, (limit / rated) ** 0.5)


def pcie_bytes_per_s(hardware: Hardware) -> float:
    """Rated bytes/s of one direction between a GPU and its host: the slower of card and slot,
    in generation and in lanes.

    An unknown generation counts as 3, the slowest in use.  Ignored: lanes shared through a switch.
    """
    known = [
        generation
        for generation in (hardware.gpu.pcie_generation, hardware.host.pcie_generation)
        if generation
    ]
    generation = min(known) if known else _ASSUMED_PCIE_GENERATION
    per_lane = _PCIE_LANE_BYTES_PER_S.get(generation, _PCIE_LANE_BYTES_PER_S[_ASSUMED_PCIE_GENERATION])
    return per_lane * min(hardware.gpu.pcie_lanes or _PCIE_LANES, hardware.host.pcie_lanes or _PCIE_LANES)


def talks_directly(hardware: Hardware) -> bool:
    """Whether the GPUs of a node have links of their own (NVLink, Infinity Fabric) and use them.

    Cards that need a bridge have such links only where ``link`` says so.
    Source: ``data/gpus`` (``interconnect``, ``interconnect_gb_per_s``) and the record or flag ``link``.
    Ignored: that a bridge joins two cards (four of H200 NVL), so that a ring of more crosses PCIe.
    """
    if hardware.gpu.interconnect_bytes_per_s is None or hardware.link in ("pcie", "qpi"):
        return False
    return hardware.link == "nvlink" or not hardware.gpu.needs_bridge


def intra_node_bytes_per_s(hardware: Hardware, coefficients: Coefficients) -> Number:
    """Sustained bytes/s that one GPU receives in a ring inside its node.

    What was measured, where it is given.  NVLink and similar: half of the rated sum of both
    directions.  PCIe: one direction of the link.  ``qpi``: at most what NCCL assumes between sockets.
    Source: nccl ``src/graph/topo.h``; nccl-tests#149 (A100 NVLink 200 of 300 GB/s), nccl#1639 (5090).
    """
    if hardware.link_bytes_per_s is not None:
        return hardware.link_bytes_per_s
    rated = hardware.gpu.interconnect_bytes_per_s
    pcie = pcie_bytes_per_s(hardware) * coefficients.pcie_efficiency
    if hardware.link == "qpi":
        return minimum(pcie, _INTER_SOCKET_BYTES_PER_S)
    if rated is None or not talks_directly(hardware):
        return pcie
    return rated / 2 * coefficients.nvlink_efficiency
