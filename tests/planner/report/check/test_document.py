"""The JSON of a check, of answers that were made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.configs.writing.edits import REMOVED, Edit
from planner.errors import ExitCode
from planner.report.check.checked import Checked, Fix, Written
from planner.report.check.document import CheckDocument, check_json
from planner.report.check.traced import Traced
from planner.units import GIB
from tests.planner.report.prediction import made

FITS = Checked("a.yaml", "trl 1.16.0", made.subject(), flags="--model 7b")
BAD = Checked("b.yaml", failure="no such key", failure_code=ExitCode.USAGE)


def results(*checked: Checked) -> list[dict[str, Any]]:
    """The results of a document, which is read again by its own schema."""
    text = check_json(checked)
    CheckDocument.model_validate_json(text)
    found: list[dict[str, Any]] = json.loads(text)["results"]
    return found


def test_an_answer_or_a_reason() -> None:
    """Bytes are whole, empty texts are null."""
    good, bad = results(FITS, BAD)
    assert (good["error"], good["launch"], good["accelerate"], good["levers"]) == (None,) * 4
    assert (good["exit_code"], good["answer"]["verdict"], good["answer"]["step_s"]) == (0, "fits", 2.01)
    # 4,933,741,824.5 bytes are reserved, 450 MiB are the context.
    assert good["answer"]["needs_bytes"] == pytest.approx(4_933_741_824.5 + 450 * 2**20, abs=0.5)
    assert isinstance(good["answer"]["needs_bytes"], int)
    assert (bad["error"], bad["answer"], bad["exit_code"], bad["tool"]) == ("no such key", None, 2, "")


def test_the_worst_code_is_that_of_all_unless_another_is_given() -> None:
    """``--allow`` gives one."""
    assert json.loads(check_json([FITS, BAD]))["exit_code"] == 2
    assert json.loads(check_json([FITS, BAD], ExitCode.FITS))["exit_code"] == 0


def test_a_job_without_a_time_has_none() -> None:
    """As on a card whose rates nobody knows."""
    (found,) = results(replace(FITS, subject=made.subject(time=None)))
    assert (found["answer"]["step_s"], found["answer"]["tokens_per_s"]) == (None, None)


def test_changes_are_keys_of_files() -> None:
    """A key that goes has no value; remarks are pairs of place and text."""
    file = Path("ds.json")
    edits = (Edit(file, ("zero", "stage"), 3), Edit(file, ("x",), REMOVED))
    change = Fix(made.lever(), 3 * GIB // 2, edits, made.subject(fits_probability=0.8))
    (found,) = results(replace(FITS, fixes=(change,), remedy=(change,), remarks=(("a:k", "odd"),)))
    assert found["levers"] == found["remedy"]
    (lever,) = found["levers"]
    assert lever["edits"] == [
        {"file": "ds.json", "key": "zero.stage", "value": 3, "remove": False},
        {"file": "ds.json", "key": "x", "value": None, "remove": True},
    ]
    assert (lever["flags"], lever["saves_bytes"], lever["fits_probability"]) == ("--seq 512", 1610612736, 0.8)
    assert found["remarks"] == [{"origin": "a:k", "text": "odd"}]


def test_what_was_written_and_what_was_run() -> None:
    """Each with its own code; the written file's is that of the result."""
    written = Written(("a-fits.yaml",), replace(BAD, failure_code=ExitCode.NOT_MODELLED))
    (found,) = results(replace(FITS, written=written))
    assert (found["exit_code"], found["written"]["exit_code"]) == (6, 6)
    assert (found["written"]["error"], found["written"]["answer"]) == ("no such key", None)
    traced = Traced(ExitCode.GPU_MEMORY_SHORT, "", 3, 4, 2, ("a guess",))
    (found,) = results(replace(FITS, traced=traced))
    assert (found["exit_code"], found["written"]) == (0, None)
    assert found["dry_run"] == {
        "exit_code": 3,
        "error": None,
        "allocated_bytes": 3,
        "reserved_bytes": 4,
        "limit_bytes": 2,
        "assumed": ["a guess"],
    }
