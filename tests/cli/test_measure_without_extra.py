"""``measure`` where only the planner is installed: one sentence that names the extra,
never an internal error.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

import pytest

from measure.cli import job_flags
from measure.cli.main import main

_RUN = ["run", "--model", "qwen2.5-0.5b", "--method", "lora", "--seq", "64", "--gpu", "cpu"]


@pytest.mark.parametrize("arguments", [["env"], _RUN], ids=["env", "run"])
def test_a_missing_library_is_named_with_its_extra(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, the library and the extra that has it; nothing on standard output."""

    def without_psutil(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "psutil" else ModuleSpec(name, None)

    monkeypatch.setattr(job_flags, "find_spec", without_psutil)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "psutil is not installed; install the measure extra" in err


def test_records_are_checked_without_the_extra(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Looking at records needs no library that measures:
    a file that is not there is what the message speaks of.
    """
    for name in (
        "measure.run.readings.host_memory",
        "measure.run.readings.environment",
        "measure.run.cases.trust",
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert main(["check", f"{tmp_path}/none.jsonl"]) == 2
    assert "none.jsonl" in capsys.readouterr().err


def test_a_length_that_was_not_said_is_assumed_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard error names the length that is taken; what was given stays as it is."""
    from measure.cli.job_flags import with_length
    from planner.intake.given.request import from_flags

    given = with_length(from_flags({"model": "7b", "method": "lora"}), "an example")
    assert given.get("seq") == 1024
    assert "no --seq was given: 1024 tokens are assumed" in capsys.readouterr().err
    assert (
        with_length(from_flags({"model": "7b", "method": "lora", "seq": 64}), "an example").get("seq") == 64
    )
    assert capsys.readouterr().err == ""
