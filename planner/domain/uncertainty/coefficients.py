"""The physical coefficients of the model: one value each, with bounds and a source.

Identity (these priors) gives the physics as the literature states it; a calibration replaces values,
never formulas.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from planner.domain.uncertainty.prior import Prior, prior
from planner.units import GIB, GIGA, KIB, MEGA, MIB


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Named physical coefficients.  Metadata of each field: ``low``, ``high`` (bounds), ``unit``,
    ``settled_by``, ``source``.
    """

    name: str = "uncalibrated"

    context_bytes: float = prior(
        (200 * MIB, 50 * MIB, 800 * MIB),
        "bytes",
        "assumed",
        "100-300 MiB of kernels; lazy loading saves 362, pytorch#86509",
    )
    thread_memory_bytes: float = prior(
        (2.0 * KIB, 1.0 * KIB, 6.0 * KIB),
        "bytes per thread that the GPU can hold",
        "document_text",
        "bare contexts of torch 2.7.1+cu128 are 256 MiB on an RTX 3090 (InvokeAI#9413) and about 520 "
        "MiB on an H200 (slide2vec#326): 2.1 and 2.0 KiB for each thread; 1 KiB is the default stack, "
        "and kernels that need more raise it",
    )
    nccl_bytes: float = prior(
        (300 * MIB, 100 * MIB, 1500 * MIB),
        "bytes",
        "assumed",
        "9.2 MiB x channels x peers gives 150-600 MiB, nccl src/init.cc channel buffers",
    )
    host_process_bytes: float = prior(
        (2.5 * GIB, 1.5 * GIB, 5.0 * GIB),
        "bytes",
        "assumed",
        "resident size of a process with torch, transformers and CUDA libraries, 2.4-4 GB",
    )
    int8_outlier_fraction: float = prior(
        (0.01, 0.0, 0.3),
        "of input columns",
        "assumed",
        "columns with one value above 6 in the micro-batch; LLM.int8(), arXiv 2208.07339, "
        "section 4: 0.1 % are systematic in 6.7B models, and down projections add columns of "
        "their own; depends on the data",
    )
    gpu_rate: float = prior(
        (1.0, 0.3, 1.5),
        "of a usual card's rates",
        "assumed",
        "all kernels of one machine's GPU against others of its kind: power caps, clocks, virtual and "
        "shared cards; learnt from a machine's own readings only, 1 for any other",
    )
    matmul_efficiency: float = prior(
        (0.75, 0.3, 0.9),
        "of dense peak",
        "document_text",
        "best shapes reach 0.87 (A100) and 0.80 (H100), stas00/ml-engineering MAMF table; LLM shapes "
        "0.73 (H100), SemiAnalysis 2024-12",
    )
    matmul_efficiency_half_rate: float = prior(
        (0.9, 0.4, 1.15),
        "of dense peak",
        "document_text",
        "GeForce cards halve the rate for fp32 accumulation and boost above the rated clock: RTX 4090 "
        "165 of 165, tinygrad#13623; RTX 5090 236 of 210, zzc0721/torch-performance-test-data#15; "
        "times 0.9 for LLM shapes",
    )
    fp32_matmul_efficiency: float = prior(
        (0.75, 0.4, 0.95),
        "of fp32 peak",
        "document_text",
        "cuBLAS on A100 17-19 of 19.5 TFLOP/s, triton#2491; RTX 5090 66 of 105, "
        "zzc0721/torch-performance-test-data#15",
    )
    tile_rows: float = prior(
        (128.0, 0.0, 512.0),
        "rows",
        "document_text",
        "half a tile lost per product, and part of a last wave: NVIDIA matrix multiplication guide, "
        "tiles of 128 to 256 rows",
    )
    attention_efficiency: float = prior(
        (0.5, 0.1, 0.75),
        "of dense peak",
        "document_text",
        "FlashAttention-2, causal, forward and backward, 2k-8k tokens: 0.50-0.58 on A100, 0.3 on H100, "
        "arXiv 2307.08691",
    )
    attention_efficiency_flash1: float = prior(
        (0.3, 0.1, 0.5),
        "of dense peak",
        "document_text",
        "FlashAttention 1 and its Triton version, causal, forward and backward, 2k-16k tokens on A100: "
        "0.25-0.35, arXiv 2307.08691 section 4.1",
    )
    memory_efficiency: float = prior(
        (0.89, 0.66, 0.94),
        "of memory bandwidth",
        "document_text",
        "streaming kernels, one tensor read and one written, then two read and one written: V100 802 and "
        "814 of 900 GB/s, A100 40 GB 1,381 and 1,360 of 1,555, A40 652 and 653 of 696, L40 770 and 768 "
        "of 864, H100 PCIe 1,704 and 1,832 of 2,039, H200 3,165 and 3,534 of 4,800 "
        "(te42kyfo/gpu-benches, gpu-stream and cuda-stream); torch's product of two tensors 1,727 of "
        "1,935 on an A800 (mli/transformers-benchmarks#4); copies 918 of 1,008 on an RTX 4090 "
        "(tinygrad/open-gpu-kernel-modules#6)",
    )
    kernel_s: float = prior(
        (2.5 / MEGA, 0.5 / MEGA, 5.0 / MEGA),
        "s per kernel",
        "document_text",
        "what a streaming kernel takes beside its bytes, in graphs of 10,000: "
        "A40 1.9 us at 67 MB, A100 2.7, H200 3.1 and L40 3.2 at 168 MB (te42kyfo/gpu-benches, "
        "gpu-small-kernels)",
    )
    launch_s: float = prior(
        (17.5 / MEGA, 3.0 / MEGA, 40.0 / MEGA),
        "s per operator",
        "table_fit",
        "5-7 us to dispatch Transformers 5.23 and peft 0.21 modules, 8-9 under autocast, measured on an "
        "AMD EPYC without a GPU; cudaLaunchKernel and the allocator add 2-5 us; the place in 12-23 us "
        "was moved from 15 to 17.5 with the published tables in sight",
    )
    int8_relative_speed: float = prior(
        (0.86, 0.14, 1.8),
        "of the 16-bit product",
        "document_text",
        "LLM.int8() product with quantisation and outliers at width 4096, arXiv 2208.07339 appendix D",
    )
    dequantize_relative_speed: float = prior(
        (1.0, 0.15, 1.5),
        "of memory-bound kernels",
        "assumed",
        "4-bit kernels beside what their bytes and instructions allow: bitsandbytes csrc/kernels.cu",
    )
    length_variation: float = prior(
        (0.8, 0.1, 1.5),
        "standard deviation / mean",
        "document_text",
        "instruction data: cls-fudan-news-zh 3234 +- 2548 tokens, modelscope/swift Benchmark.md",
    )
    comm_overlap: float = prior(
        (0.5, 0.0, 0.95),
        "of collective time",
        "assumed",
        "ZeRO-3 gathers a bucket ahead; half for want of a figure",
    )
    kernel_time_beside_collectives: float = prior(
        (1.189, 1.0, 1.5),
        "of their time alone",
        "document_text",
        "arXiv 2507.03114, abstract: 18.9 % more on average",
    )
    hook_s: float = prior(
        (65.0 / MEGA, 5.0 / MEGA, 3000.0 / MEGA),
        "s per hook",
        "measured",
        "59-71 us per module hook (ZeRO-3), 45-90 per trained tensor (ZeRO-2), measured with DeepSpeed "
        "0.19.8 on an AMD EPYC without a GPU; far more in TensorAuto/OpenTau#177",
    )
    pcie_efficiency: float = prior(
        (0.5, 0.2, 0.9),
        "of link rate",
        "assumed",
        "pinned copies reach 75-80 % of the link, pageable 40-60 %",
    )
    nvlink_efficiency: float = prior(
        (0.7, 0.3, 0.95),
        "of one direction",
        "document_text",
        "NCCL bus bandwidth: A100 200 of 300 GB/s, nccl-tests#149; H100 370 of 450, nccl#1374",
    )
    network_efficiency: float = prior((0.7, 0.2, 0.95), "of link rate", "assumed", "NCCL over RDMA or TCP")
    network_bytes_per_s_per_gpu: float = prior(
        (6.25 * GIGA, 0.5 * GIGA, 50.0 * GIGA),
        "bytes/s per GPU of a node",
        "document_text",
        "where the network is not named: 400 Gbit/s for the 8 GPUs of an EC2 p4d.24xlarge, four times "
        "that in a DGX A100 (8 x 200 Gbit/s), NVIDIA and AWS data sheets; servers with one 100 Gbit/s "
        "card have less per GPU",
    )
    nvme_bytes_per_s: float = prior(
        (3.0 * GIGA, 0.5 * GIGA, 30.0 * GIGA),
        "bytes/s per node",
        "assumed",
        "one PCIe 3 drive; ZeRO-Infinity, arXiv 2104.07857, reaches near the rated peak",
    )
    cpu_adam_params_per_s: float = prior(
        (1.4 * GIGA, 0.05 * GIGA, 6.0 * GIGA),
        "parameters/s per node",
        "document_text",
        "DeepSpeed#735 1.4e9, #6834 1.8e9; #1635 6e7 on a pathological host: the lower of the healthy ones",
    )
    cpu_adam_params_per_s_per_core: float = prior(
        (0.07 * GIGA, 0.02 * GIGA, 0.15 * GIGA),
        "parameters/s per core",
        "assumed",
        "0.05-0.1e9 per core until memory bandwidth limits",
    )

    def prior_of(self, name: str) -> Prior:
        """Value, bounds, unit and source of one coefficient before any fit;
        raises ``KeyError`` when there is none.
        """
        return {each.name: each for each in PRIORS}[name]


PRIORS: tuple[Prior, ...] = tuple(
    Prior(f.name, float(getattr(Coefficients(), f.name)), **f.metadata)
    for f in fields(Coefficients)
    if f.metadata
)
"""All coefficients before any fit, in the order of the class."""
