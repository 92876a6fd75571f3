"""Flat parameters of FSDP1 in host RAM."""

from __future__ import annotations

from collections import defaultdict

from planner.program.engines.fsdp.fsdp_units import Units
from planner.program.engines.groups import Sizes
from planner.program.job import Job
from planner.program.load import prepared_dtype
from planner.program.parameters import adapter_weights, model_weights


def flat_parts(job: Job) -> list[tuple[float, bool]]:
    """Bytes of this process's part of each flat parameter, and whether that requires a gradient.

    Source: torch 2.13 distributed/fsdp/_flat_param.py: the parameters of a unit are one.
    """
    sizes, units = Sizes(job), Units(job)
    parts, trained = defaultdict[str, float](float), set[str]()
    for number, each in enumerate((*model_weights(job), *adapter_weights(job))):
        if not sizes.divides(each):
            continue
        # Packed matrices are counted in bytes.
        each.dtype = "int8" if each.packed else prepared_dtype(job, each)
        apart = each.adapter and job.stack.fsdp1_wraps_adapters
        name = f"adapter {number}" if apart else units.of(each)
        parts[name] += sizes.stored_bytes(each)
        if each.requires_gradient:
            trained.add(name)
    return [(n_bytes, name in trained) for name, n_bytes in parts.items()]
