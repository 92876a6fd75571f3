"""Time of micro-steps: when the host shows, what narrow heads cost."""

from __future__ import annotations

from functools import partial

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.ops.work import FusedAttention
from planner.throughput.kernel_time import attention_seconds
from planner.throughput.step_time import predict_time
from tests.jobs import resolved, typed
from tests.planner.throughput.jobs import job

PRIORS = Coefficients()
NATURAL = typed(
    "--model qwen2.5-1.5b --method lora --gpu a100-80-sxm --seq 2048 --batch 1 --padding longest "
    "--tokens-per-sample 1000"
)


scenario = partial(resolved, NATURAL)
"""A job on samples of natural length."""


def test_the_longer_of_kernels_and_host_is_what_a_micro_step_takes() -> None:
    """On 300 tokens a model of 1.5B waits for the host, on 1,500 one of 14B for its kernels."""
    for model, tokens, waits_for_host in (("qwen2.5-1.5b", "300", True), ("qwen2.5-14b", "1500", False)):
        found = predict_time(scenario(model=model, tokens_per_sample=tokens), PRIORS)
        assert found is not None
        (launch,) = (each for each in found.terms if each.name == "launch")
        assert (launch.overlapped_s < launch.seconds) == waits_for_host


def test_narrow_heads_are_slower() -> None:
    """Fused attention with heads of 64 features reaches 0.9 of the rate of 128; wider heads gain nothing."""
    held = job(scenario(model="qwen2.5-0.5b"))
    narrow, usual, wide = (
        attention_seconds(held, FusedAttention("flash", (width, width), "triangle"), 1.0, held.values)
        for width in (64, 128, 256)
    )
    assert usual / narrow == pytest.approx(0.905, abs=0.001)
    assert wide == usual
