"""The trace on fake tensors beside the dry run of the same step as a program, of jobs that a rule draws."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from itertools import islice

import pytest
from drawn_jobs import ANSWERED, DIFFERENCES, FREES, Job, draws, named, read, row_of

from planner.allocator.events import AllocEvent
from tests.extras import needs

ROWS = read()
# Two in which both are equal: experts with LoRA, and a dense model in full.
SAMPLE = (2, 9)


def jobs() -> dict[int, Job]:
    """The draws by their numbers."""
    return {job.number: job for job in islice(draws(), len(ROWS))}


def test_the_table_holds_the_first_draws() -> None:
    """In their order, none left out, until sixty are answered; each kind of everything is among them."""
    assert [{name: row[name] for name in asdict(job)} for job, row in zip(draws(), ROWS, strict=False)] == [
        {name: str(value) for name, value in asdict(job).items()} for job in jobs().values()
    ]
    answered = [row for row in ROWS if not row["refused"]]
    assert len(answered) == ANSWERED
    assert not ROWS[-1]["refused"]
    for name in ("method", "checkpointing", "attention", "optimizer", "precision", "batch", "seq"):
        assert {row[name] for row in answered} == {str(getattr(job, name)) for job in jobs().values()}


@pytest.mark.parametrize("row", [row for row in ROWS if not row["refused"]], ids=lambda row: row["number"])
def test_both_are_equal_or_the_difference_has_a_name(row: dict[str, str]) -> None:
    """To the byte without one; no difference is unknown, and none moves a peak by more than it may."""
    names = set(filter(None, row["differences"].split(";")))
    most = {each.name: each.most for each in (*DIFFERENCES, FREES)}
    assert names <= set(most)
    for peak in ("allocated_bytes", "reserved_bytes"):
        trace, dry = int(row[f"trace_{peak}"]), int(row[f"dry_{peak}"])
        assert abs(dry - trace) <= max((most[name] for name in names), default=0) * trace
    assert names or row["trace_requests"] == row["dry_requests"]


def test_a_request_that_one_side_has_alone_is_named_by_its_operator() -> None:
    """An index is known, and anything else is not."""

    def of(*ops: str) -> list[AllocEvent]:
        return [AllocEvent("alloc", number, 1024 * len(op), op=op) for number, op in enumerate(ops)]

    both = ("aten.mm.default", "aten.mm.default")
    assert named(of(*both), of(*both)) == ""
    assert named(of(*both), of("aten.index.Tensor", *both)) == "index"
    assert named(of("aten.mul.Tensor", *both), of(*both)) == "unknown"


def again(number: int) -> None:
    """Run a stored job once more: the row is the same."""
    job = jobs()[number]
    assert row_of(job) == next(row for row in ROWS if int(row["number"]) == number)


@pytest.mark.real
@needs("torch", "transformers", "peft", "accelerate", "bitsandbytes")
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("number", SAMPLE)
def test_a_sample_of_the_table_is_as_it_is_stored(number: int) -> None:
    """A few of the draws, through both again."""
    again(number)


@pytest.mark.slow
@needs("torch", "transformers", "peft", "accelerate", "bitsandbytes")
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("number", [int(row["number"]) for row in ROWS if int(row["number"]) not in SAMPLE])
def test_the_whole_table_is_as_it_is_stored(number: int) -> None:
    """All others, and those that are refused."""
    again(number)
