"""A job whose layers are over four groups of GPUs."""

from __future__ import annotations

from typing import Any

from planner.domain.scenario import Scenario
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve

BASE: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "method": "full",
    "gpu": "h100-sxm:8",
    "seq": 4096,
    "pipeline_parallel": 4,
    "grad_accum": 8,
}


def scenario_of(**flags: object) -> Scenario:
    """The job with these flags."""
    return resolve(from_flags({name: value for name, value in (BASE | flags).items() if value is not None}))
