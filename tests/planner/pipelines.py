"""A job whose layers are over four groups of GPUs."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.jobs import resolved, typed

BASE: dict[str, Any] = typed(
    "--model llama-3.1-8b --method full --gpu h100-sxm:8 --seq 4096 --pipeline-parallel 4 --grad-accum 8"
)


scenario_of = partial(resolved, BASE)
"""The job with these flags."""
