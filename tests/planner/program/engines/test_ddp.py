"""DDP's buckets, filled by hand."""

from __future__ import annotations

from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.program.engines.ddp import bucket_sizes, copy_sizes
from planner.program.job import job_of
from planner.program.step import step_of
from planner.units import MIB


def test_a_bucket_ends_with_the_gradient_that_fills_it() -> None:
    """The first holds 1 MiB, the others 25 MiB; what remains has a bucket too."""
    assert bucket_sizes([MIB / 2, MIB / 2, 20 * MIB, 30 * MIB, 3 * MIB]) == [MIB, 50 * MIB, 3 * MIB]
    assert bucket_sizes([]) == []


def test_a_copy_ends_with_the_tensor_that_fills_it() -> None:
    """250 MiB of one dtype; a tensor that is alone is sent as it is."""
    tensors = [("bf16", 300 * MIB), ("bf16", 200 * MIB), ("fp32", MIB), ("bf16", 60 * MIB), ("fp32", 2 * MIB)]
    assert copy_sizes(tensors) == [0, 260 * MIB, 3 * MIB]
    assert copy_sizes([]) == []


def test_buckets_hold_every_gradient_once_and_stay() -> None:
    """Qwen2.5-0.5B has 494,032,768 parameters of two bytes;
    the table of a tied model closes the last bucket.
    """
    flags = {
        "model": "qwen2.5-0.5b",
        "method": "full",
        "sharding": "ddp",
        "gpus": 2,
        "gpu": "a100-80gb",
        "seq": 512,
        "batch": 1,
    }
    scenario = resolve(from_flags(flags))
    stream = step_of(job_of(scenario, Coefficients()))
    buckets = [slot for slot in range(len(stream.units)) if stream.place(slot)[2] == "bucket"]
    assert sum(stream.unit_bytes[slot] for slot in buckets) == 2 * 494_032_768
    assert stream.unit_bytes[buckets[-1]] > 2 * 151_936 * 896
    assert not {~slot for slot in buckets} & set(stream.events)
    copies = [slot for slot in range(len(stream.units)) if stream.place(slot)[2] == "broadcast"]
    tables = 2 * 151_936 * 896
    assert sum(stream.unit_bytes[slot] for slot in copies) == 2 * 494_032_768 - tables
    assert {~slot for slot in copies} <= set(stream.events)
