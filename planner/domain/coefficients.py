"""The physical coefficients of the model: one value each, with bounds and a source.

Identity (these priors) gives the physics as the literature states it; a calibration replaces values, never formulas.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from planner.units import GIGA, MEGA, MIB


def _prior(value: float, low: float, high: float, unit: str, source: str) -> Any:
    """A dataclass field that carries its bounds, unit and source as metadata."""
    return field(default=value, metadata={"low": low, "high": high, "unit": unit, "source": source})


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Named physical coefficients.  Metadata of each field: ``low``, ``high`` (bounds), ``unit``, ``source``."""

    name: str = "uncalibrated"

    context_bytes: float = _prior(
        450 * MIB, 200 * MIB, 1200 * MIB, "bytes", "lazy-loading CUDA context and loaded kernels: 274-636 MiB, pytorch#86509, #107667, #109888"
    )
    nccl_bytes: float = _prior(
        300 * MIB, 100 * MIB, 1500 * MIB, "bytes", "9.2 MiB x channels x peers gives 150-600 MiB, nccl src/init.cc channel buffers"
    )
    slack_fraction: float = _prior(
        0.03, 0.0, 0.2, "of transient bytes", "caching allocator rounding and fragmentation, 2-15 % at variable length, c10/cuda/CUDACachingAllocator.cpp"
    )
    orphan_fraction: float = _prior(
        0.4, 0.0, 1.0, "of converted bytes", "segments left reserved after a dtype conversion frees blocks that are too small to reuse"
    )
    matmul_efficiency: float = _prior(
        0.65, 0.3, 0.85, "of dense peak", "large bf16 GEMMs reach 60-75 % of dense peak, llm-foundry A100 64 % MFU without checkpointing"
    )
    attention_efficiency: float = _prior(0.45, 0.1, 0.75, "of dense peak", "FlashAttention-2 forward and backward on A100, 50-73 %, arXiv 2307.08691")
    memory_efficiency: float = _prior(0.75, 0.4, 0.95, "of memory bandwidth", "STREAM-like elementwise kernels reach 70-90 %")
    launch_s: float = _prior(9.0 / MEGA, 3.0 / MEGA, 30.0 / MEGA, "s per operator", "eager PyTorch issue time of 5-10 us per operator plus autograd")
    pcie_efficiency: float = _prior(0.5, 0.2, 0.9, "of link rate", "pinned copies reach 75-80 % of the link, pageable 40-60 %")
    nvlink_efficiency: float = _prior(0.6, 0.3, 0.9, "of link rate", "NCCL bus bandwidth over rated NVLink bandwidth")
    network_efficiency: float = _prior(0.7, 0.2, 0.95, "of link rate", "NCCL over RDMA or TCP")
    cpu_adam_params_per_s: float = _prior(
        0.4 * GIGA, 0.05 * GIGA, 3.0 * GIGA, "parameters/s per node", "DeepSpeed#735 1.4e9, #6834 1.8e9, #1635 6e7 per node"
    )

    def prior_of(self, name: str) -> dict[str, Any]:
        """Bounds, unit and source of one coefficient; raises ``KeyError`` when there is none."""
        return {f.name: dict(f.metadata) for f in fields(self)}[name]
