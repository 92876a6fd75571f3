"""ReLoRA's restart, worked out by hand."""

from __future__ import annotations

from itertools import accumulate

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.program.job import job_of
from planner.program.request_stream import RequestStream
from planner.program.weights.merge import merge_adapters


@pytest.mark.parametrize(("method", "element_bytes"), [("lora", 8), ("qlora", 10)])
def test_the_largest_matrix_is_merged(method: str, element_bytes: int) -> None:
    """fp32 factors: their product and its multiple; over 4 bits the multiple,
    the 16-bit weight of the file, and the fp32 sum.
    """
    flags = {
        "model": "llama-2-7b",
        "method": method,
        "gpu": "a100-80gb",
        "seq": 512,
        "relora": True,
        "stack": "axolotl",
    }
    job = job_of(resolve(from_flags(flags)), Coefficients())
    assert job.recipe.adapter is not None
    stream = RequestStream()
    merge_adapters(stream, job, job.recipe.adapter)
    sizes = [
        stream.unit_bytes[event] if event >= 0 else -stream.unit_bytes[~event] for event in stream.events
    ]
    live = [*accumulate(sizes)]
    assert max(live) == element_bytes * 4_096 * 11_008
    assert live[-1] == 0
