"""Shares of a campaign as jobs of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from measure.campaign import remote
from measure.campaign.remote import Submission, share_command, take_share
from measure.run.readings.nvml import Gpu
from planner.errors import UsageError
from planner.units import MIB
from tests.extras import import_or_skip
from tests.measure.campaign.cases import case


def test_shares_are_disjoint_and_whole() -> None:
    """Every case is in one share; what is no share is refused."""
    cases = tuple(case(seq=number) for number in range(1, 8))
    shares = [take_share(cases, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(each.values["seq"] for share in shares for each in share) == list(range(1, 8))
    assert take_share(cases, None) == cases
    for text in ("0/3", "4/3", "x", "1"):
        with pytest.raises(UsageError, match="--share must be"):
            take_share(cases, text)


def test_a_job_keeps_the_environment_that_its_scheduler_gives_it(tmp_path: Path) -> None:
    """Which cards are the job's own is said there: the command adds where the package is,
    and nothing else.
    """
    command = share_command(Path("a.toml"), tmp_path, "2/4", Submission("slurm", 4, None, None))
    assert command[0] == "env"
    assert command[1].startswith("PYTHONPATH=")
    assert command[2:6] == [sys.executable, "-m", "measure", "campaign"]


def test_jobs_on_this_machine_have_a_card_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """submitit's local executor hides all cards; jobs run at once,
    so more of them than cards would measure each other.
    """
    submitted: list[list[str]] = []
    submitit = import_or_skip("submitit")
    executor: Any = SimpleNamespace(
        update_parameters=lambda **_: None, submit=lambda wrapped: submitted.append(wrapped.command)
    )
    monkeypatch.setattr(submitit, "AutoExecutor", lambda **_: executor)
    cards = tuple(Gpu(index, "NVIDIA H200", "0" * 12, 143771 * MIB, "580.1", "13.0") for index in (2, 3))
    monkeypatch.setattr(remote, "look_for_gpus", lambda: (None, cards, None))
    remote.submit(tmp_path / "a.toml", tmp_path, Submission("local", 2, None, None))
    assert [command[2] for command in submitted] == ["CUDA_VISIBLE_DEVICES=2", "CUDA_VISIBLE_DEVICES=3"]
    with pytest.raises(UsageError, match="3 jobs on this machine would share 2 GPUs"):
        remote.submit(tmp_path / "a.toml", tmp_path, Submission("local", 3, None, None))
    submitted.clear()
    remote.submit(tmp_path / "a.toml", tmp_path, Submission("slurm", 3, None, None))
    assert not [part for command in submitted for part in command if "CUDA" in part]
