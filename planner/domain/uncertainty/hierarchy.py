"""How far each coefficient may lie from its prior, and how far machines may differ in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from planner.domain.uncertainty.coefficients import PRIORS
from planner.domain.uncertainty.prior import Prior

Level = Literal["all", "host"]
"""Whether a number is of all machines or of a single one."""


@dataclass(frozen=True, slots=True)
class Freedom:
    """What a fit may do with one coefficient.

    ``spread`` is one standard deviation before the fit: of the natural logarithm where the lower bound is
    above 0, else in the coefficient's own unit.  Chosen from the ranges that the prior's source states,
    before any fit, but where a comment says that tables were in sight.  ``machine``: how far one machine lies
    from others with the same cards, as one standard deviation of the logarithm; 0 where machines do not
    differ.  A machine is cards, host and links as one source or user has them; JSON calls this level
    ``host``. ``spread`` 0: only machines differ.
    """

    spread: float
    machine: float = 0.0


FREEDOM: Mapping[str, Freedom] = MappingProxyType(
    {
        "context_bytes": Freedom(0.5),
        "thread_memory_bytes": Freedom(0.35),
        "nccl_bytes": Freedom(0.5),
        "host_process_bytes": Freedom(0.25),
        # decided by the data a model reads: from a thousandth to a fifth
        "int8_outlier_fraction": Freedom(0.1),
        "gpu_rate": Freedom(0.0, machine=0.3),  # power caps, shared cards, other clocks: 0.7 to 1.3
        "matmul_efficiency": Freedom(0.12, machine=0.15),
        "matmul_efficiency_half_rate": Freedom(0.12, machine=0.15),
        "fp32_matmul_efficiency": Freedom(0.2),
        "tile_rows": Freedom(60.0),
        "attention_efficiency": Freedom(0.25, machine=0.2),
        "attention_efficiency_flash1": Freedom(0.2, machine=0.2),
        "memory_efficiency": Freedom(0.12, machine=0.15),
        "kernel_s": Freedom(0.3),
        "launch_s": Freedom(0.4, machine=0.5),
        "int8_relative_speed": Freedom(0.4, machine=0.4),
        "dequantize_relative_speed": Freedom(0.4, machine=0.3),
        "length_variation": Freedom(0.3),
        "comm_overlap": Freedom(0.2, machine=0.2),
        # from 1.08 to 1.31, two spreads each way: kernels differ, means less
        "kernel_time_beside_collectives": Freedom(0.05),
        "hook_s": Freedom(0.6, machine=0.8),
        "pcie_efficiency": Freedom(0.3, machine=0.5),
        "nvlink_efficiency": Freedom(0.2, machine=0.3),
        "network_efficiency": Freedom(0.2, machine=0.4),
        "network_bytes_per_s_per_gpu": Freedom(0.7),
        "nvme_bytes_per_s": Freedom(0.5),
        "cpu_adam_params_per_s": Freedom(0.6, machine=0.7),
        "cpu_adam_params_per_s_per_core": Freedom(0.3, machine=0.5),
    }
)
PRIOR_BY_NAME: Mapping[str, Prior] = MappingProxyType({prior.name: prior for prior in PRIORS})


def moved(name: str, offset: Any) -> Any:
    """The value of a coefficient ``offset`` away from its prior, inside its bounds;
    takes a number or an array.
    """
    prior = PRIOR_BY_NAME[name]
    if isinstance(offset, int | float):
        if prior.low > 0 and offset > math.log(prior.high / prior.value):
            # The exponential of an extreme offset would overflow.
            return prior.high
        free = prior.value * math.exp(offset) if prior.low > 0 else prior.value + offset
        return min(max(free, prior.low), prior.high)
    import numpy as np

    return np.clip(
        prior.value * np.exp(offset) if prior.low > 0 else prior.value + offset, prior.low, prior.high
    )
