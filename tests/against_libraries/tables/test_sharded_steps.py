"""The trace of a sharded job beside the dry run of the same job by the engine's own code."""

from __future__ import annotations

import shutil

import pytest
from sharded_steps import PEAKS, read, row_of
from sharded_table import JOBS, KEY, key_of

from tests.extras import needs

ROWS = {key_of(row): row for row in read()}
TRACED = {key: row for key, row in ROWS.items() if not row["refused"]}
# Of a peak, in percent: of the steps alone what is allocated and what is reserved, and with loading.
MOST_PERCENT = dict(zip(PEAKS, (0.02, 2.5, 4.0), strict=True))
SAMPLE = ("qwen2.5-0.5b", "full", "ddp", "2", "none", "1", "false", "2", "512", "")


def test_the_table_has_jobs_of_every_engine() -> None:
    """All are of the list, and none is refused."""
    assert {key_of(job) for job in JOBS} >= set(ROWS)
    engine = KEY.index("sharding")
    assert {key[engine] for key in TRACED} == {"ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp1"}
    assert set(ROWS) == set(TRACED)
    assert len(TRACED) >= 10


@pytest.mark.parametrize("key", TRACED, ids="-".join)
def test_both_need_the_same(key: tuple[str, ...]) -> None:
    """Within the limits, none of which has an exception."""
    for peak, most in MOST_PERCENT.items():
        trace, dry = (int(TRACED[key][f"{side}_{peak}"]) for side in ("trace", "dry"))
        assert abs(trace / dry - 1) <= most / 100, peak


def again(key: tuple[str, ...]) -> None:
    """Run a stored job once more: the row is the same."""
    assert row_of(dict(zip(KEY, key, strict=True))) == ROWS[key]


@needs("torch", "transformers", "peft", "accelerate", "bitsandbytes", "deepspeed")
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_job_of_the_table_is_as_it_is_stored() -> None:
    """The smallest, through both again."""
    again(SAMPLE)


@pytest.mark.slow
@needs("torch", "transformers", "peft", "accelerate", "bitsandbytes", "deepspeed")
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("key", [key for key in ROWS if key != SAMPLE], ids="-".join)
def test_the_table_is_as_it_is_stored(key: tuple[str, ...]) -> None:
    """All others."""
    again(key)
