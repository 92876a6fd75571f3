"""Switches take no value: what is written after one is answered by name, and what is not modelled by its own exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.main import main

JOB = ("--model", "8b", "--method", "full", "--gpu", "h100-sxm:8", "--seq", "8192", "--sharding", "fsdp")


@pytest.mark.parametrize("before", [(), ("search",)])
def test_selective_checkpointing_is_understood_and_not_modelled(
    capsys: pytest.CaptureFixture[str], before: tuple[str, ...]
) -> None:
    """Exit 6, with the two ends that can be asked for."""
    assert main([*before, *JOB, "--gradient-checkpointing", "selective"]) == 6
    assert "selective gradient checkpointing is not modelled" in capsys.readouterr().err


def test_selective_checkpointing_in_a_file_is_not_modelled(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A TOML file that says it is answered as the flag is."""
    file = tmp_path / "job.toml"
    file.write_text('model = "8b"\nmethod = "full"\ngpu = "h100-sxm"\nseq = 8192\ngradient_checkpointing = "selective"\n')
    assert main(["--config", str(file)]) == 6
    assert "not modelled" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["true", "yes"])
def test_a_value_after_a_switch_is_named(capsys: pytest.CaptureFixture[str], value: str) -> None:
    """The sentence names the switch and its opposite instead of a command that does not exist."""
    assert main([*JOB, "--double-quant", value]) == 2
    assert "--no-double-quant" in capsys.readouterr().err


def test_torchtitan_says_that_its_default_is_not_modelled(capsys: pytest.CaptureFixture[str]) -> None:
    """Its selective checkpointing keeps more than what is taken; who says the setting is not warned."""
    main([*JOB, "--stack", "torchtitan"])
    assert "own default is not modelled" in capsys.readouterr().out
    main([*JOB, "--stack", "torchtitan", "--gradient-checkpointing"])
    assert "own default is not modelled" not in capsys.readouterr().out
