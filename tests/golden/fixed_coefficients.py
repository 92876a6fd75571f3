"""The coefficients under which the golden tables are made.

They stand here, so that the tables hold formulas to the byte: neither a fit nor another literature value
moves them.
"""

from __future__ import annotations

import math

from planner.domain.uncertainty.calibration import Knob, Offset
from planner.domain.uncertainty.coefficients import PRIORS, Coefficients

# Plausible values in the units of ``Coefficients``; they need not follow what is found out later.
VALUES = {
    "context_bytes": 209715200.0,
    "thread_memory_bytes": 2048.0,
    "nccl_bytes": 314572800.0,
    "host_process_bytes": 2684354560.0,
    "int8_outlier_fraction": 0.01,
    "gpu_rate": 1.0,
    "matmul_efficiency": 0.75,
    "matmul_efficiency_half_rate": 0.9,
    "fp32_matmul_efficiency": 0.75,
    "tile_rows": 128.0,
    "attention_efficiency": 0.5,
    "attention_efficiency_flash1": 0.3,
    "memory_efficiency": 0.89,
    "kernel_s": 2.5e-06,
    "launch_s": 1.75e-05,
    "int8_relative_speed": 0.86,
    "dequantize_relative_speed": 1.0,
    "length_variation": 0.8,
    "comm_overlap": 0.5,
    "kernel_time_beside_collectives": 1.189,
    "hook_s": 6.5e-05,
    "pcie_efficiency": 0.5,
    "nvlink_efficiency": 0.7,
    "network_efficiency": 0.7,
    "network_bytes_per_s_per_gpu": 6250000000.0,
    "nvme_bytes_per_s": 3000000000.0,
    "cpu_adam_params_per_s": 1400000000.0,
    "cpu_adam_params_per_s_per_core": 70000000.0,
}
FIXED = Coefficients(**VALUES)  # type: ignore[arg-type]


def offsets_to_fixed() -> tuple[Offset, ...]:
    """What takes today's literature values to these, as offsets of a calibration: none where both are one.

    As ``moved`` of ``planner/domain/uncertainty/hierarchy.py`` reads them: a difference of logarithms, or
    of values where a coefficient may be 0.
    """
    apart = (
        (
            each.name,
            math.log(VALUES[each.name] / each.value) if each.low > 0 else VALUES[each.name] - each.value,
        )
        for each in PRIORS
        if VALUES[each.name] != each.value
    )
    return tuple(Offset(Knob(name), offset, 0.0) for name, offset in apart)
