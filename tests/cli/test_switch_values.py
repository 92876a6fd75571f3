"""Switches take no value: what is written after one is answered by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.main import main
from tests.files import written

JOB = ("--model", "8b", "--method", "full", "--gpu", "h100-sxm:8", "--seq", "8192", "--sharding", "fsdp")


@pytest.mark.parametrize(("before", "kind"), [((), "selective"), (("search",), "selective"), ((), "full")])
def test_kinds_of_checkpointing_are_told_apart(
    capsys: pytest.CaptureFixture[str], before: tuple[str, ...], kind: str
) -> None:
    """The word may mean operators or layers: exit 2, with the settings of both."""
    assert main([*before, *JOB, "--gradient-checkpointing", kind]) == 2
    message = capsys.readouterr().err
    assert "checkpoint_policy=selective-op" in message
    assert "checkpoint_every=2" in message


def test_selective_checkpointing_in_a_file_is_told_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A TOML file that says it is answered as the flag is."""
    file = written(
        tmp_path,
        'model = "8b"\nmethod = "full"\ngpu = "h100-sxm"\nseq = 8192\ngradient_checkpointing = "selective"\n',
        "job.toml",
    )
    assert main(["--config", str(file)]) == 2
    assert "checkpoint_policy=selective-op" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["true", "yes"])
def test_a_value_after_a_switch_is_named(capsys: pytest.CaptureFixture[str], value: str) -> None:
    """The sentence names the switch and its opposite instead of a command that does not exist."""
    assert main([*JOB, "--double-quant", value]) == 2
    assert "--no-double-quant" in capsys.readouterr().err


@pytest.mark.parametrize(
    "again", [("--switches", "zero12_overlap=false"), ("--switches=zero12_overlap=false",)]
)
def test_a_list_given_twice_is_refused(capsys: pytest.CaptureFixture[str], again: tuple[str, ...]) -> None:
    """The parser would keep the last one alone, and the switches of the first would be lost unseen."""
    assert main([*JOB, "--switches", "zero_auto_buckets=true", *again]) == 2
    assert "--switches is given twice" in capsys.readouterr().err


def test_one_word_may_stand_behind_the_end_of_flags() -> None:
    """Arguments of a program that is traced are its own."""
    from planner.cli.main import _refuse_lists_given_twice

    _refuse_lists_given_twice(["--switches", "a=b", "--", "python", "train.py", "--switches", "c=d"])
