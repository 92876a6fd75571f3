"""DeepSpeed without ZeRO: what each GPU holds of a whole job, against the dry run of its own code."""

from __future__ import annotations

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.throughput.communication import overlapping_share
from planner.throughput.time_inputs import job_of
from tests.jobs import resolved
from tests.planner.program.engines.zero.test_zero12 import FLAGS, TRAINED, allocated, left, stream_of

ZERO0 = {"sharding": "zero0", "precision": "bf16-mixed", "optimizer": "adamw_torch"}
# Parameters before the 500-millionth element are summed in one call; Qwen2.5-0.5B has fewer.
ALL_16_BIT, ALL_FP32 = 2 * TRAINED, 4 * TRAINED


def test_every_gpu_has_everything() -> None:
    """16-bit weights, fp32 masters and fp32 states, and no buckets that stay."""
    stream, sizes = stream_of(**ZERO0)
    end = left(stream, sizes)
    assert end["weights"] == pytest.approx(ALL_16_BIT, rel=1e-4)
    assert end["master_weights"] == ALL_FP32
    assert end["optimizer_states"] == 2 * ALL_FP32
    assert end["gradients"] == end["gradient_buckets"] == 0


def test_a_step_sums_all_gradients_once_and_widens_them() -> None:
    """Two steps: one copy for the sum in the last micro-step of each; one fp32 copy of all, and at set-up."""
    stream, sizes = stream_of(**ZERO0, grad_accum="3")
    summed = allocated(stream, sizes, "flatten(gradients)")
    assert set(summed) == {ALL_16_BIT}
    widened = allocated(stream, sizes, "grad in fp32")
    assert sum(widened) == (1 + len(summed)) * ALL_FP32


def test_fp32_has_neither_masters_nor_casts() -> None:
    """DeepSpeed leaves the optimizer as it is where neither half precision is on."""
    stream, sizes = stream_of(**ZERO0 | {"precision": "fp32", "load_dtype": "fp32"})
    assert left(stream, sizes)["master_weights"] == 0
    assert allocated(stream, sizes, "grad in fp32") == []


def test_the_peak_is_that_of_the_dry_run() -> None:
    """Transformers 5.23, Accelerate 1.15, DeepSpeed 0.19.8 on rank 0 of 4, in bf16:
    ``tests/against_libraries/programs/sharded.py`` with Qwen2.5-0.5B.
    """
    said = {
        **FLAGS,
        **ZERO0,
        "gpus": "4",
        "gpu": "h100-sxm",
        "batch": "2",
        "seq": "128",
        "load_dtype": "bf16",
    }
    stream, sizes = stream_of(**said)
    alive = most = 0
    for event in stream.events:
        alive += sizes[event] if event >= 0 else -sizes[~event]
        most = max(most, alive)
    assert most == pytest.approx(11_890_343_172, rel=0.003)


def test_no_sum_hides_behind_backward() -> None:
    """The all-reduce begins when backward is over."""
    job = job_of(resolved({**FLAGS, **ZERO0}), Coefficients())
    assert job is not None
    assert overlapping_share(job) == 0
