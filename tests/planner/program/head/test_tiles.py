"""TRL's fused head over several cards, against dry runs of its own trainer."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from planner.memory.replayed import replayed
from tests.jobs import job_by

TABLE = Path(__file__).parents[3] / "against_libraries/programs/sft_divided.csv"


@pytest.mark.parametrize(
    "row", list(csv.DictReader(TABLE.open(encoding="utf-8"))), ids=lambda row: row["job"]
)
def test_peaks_are_those_of_trls_own_trainer(row: dict[str, str]) -> None:
    """TRL 1.16.0 under ZeRO-2 and 3, FSDP2 and DDP: allocated within 0.6 %, reserved within 1.8 %.

    Between loss and backward the host reads TRL's metrics, so that under ZeRO-3 a gathered head is given
    back in time: of Qwen3-8B with LoRA 4.4 % more was reserved without that.  FSDP2 keeps the whole gradient
    of a token table until it is reduced, without which its full fine-tune had 1.4 % less.  Under ZeRO-2 the
    workspace of autograd's first product splits what the loss gives back, where the norm of the table's
    gradient would find room: 9 % less.  Batches of packed samples are not known to the last token: 2.5 %.
    """
    words = [word.partition("=") for word in row["job"].split()]
    job = job_by({"stack": "trl", "gpu": "a100-80-sxm"} | {name: value for name, _, value in words})
    phases = replayed(job).phases
    allocated, reserved = (
        max(int(getattr(each, name)) for each in phases) for name in ("allocated_bytes", "reserved_bytes")
    )
    assert allocated == pytest.approx(int(row["allocated_bytes"]), rel=0.006)
    bound = 0.025 if "packed" in row["job"] else 0.018
    assert reserved == pytest.approx(int(row["reserved_bytes"]), rel=bound)
