"""Hostfiles: what they say about a job, and one sentence for each that says nothing usable."""

from __future__ import annotations

from pathlib import Path

import pytest

from measure.run.cases.hostfile import Hosts, read_hostfile, with_hosts
from planner.errors import InputFileError, UsageError


def test_machines_and_their_slots(tmp_path: Path) -> None:
    """Comments and empty lines are nothing; the order stays; the first machine is where all meet."""
    file = tmp_path / "hosts"
    file.write_text("# two nodes\nnode-1 slots=8  # the first\n\nnode-2   slots=8\n", encoding="utf-8")
    assert read_hostfile(file) == Hosts(("node-1", "node-2"), 8)
    said = with_hosts({"model": "7b", "gpus": None}, str(file))
    assert said == {"model": "7b", "gpus": 8, "nodes": 2, "rendezvous": "node-1:29500"}


def test_one_machine_needs_no_meeting(tmp_path: Path) -> None:
    """Its slots are GPUs of one node."""
    file = tmp_path / "hosts"
    file.write_text("here slots=2\n", encoding="utf-8")
    assert with_hosts({}, str(file)) == {"gpus": 2}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no machine"),
        ("node-1\n", "a line must be like"),
        ("node-1 slots=0\n", "a line must be like"),
        ("node-1 slots=2\nnode-1 slots=2\n", "is there twice"),
        ("node-1 slots=2\nnode-2 slots=4\n", "different numbers of slots"),
        ("$(reboot) slots=2\n", "a line must be like"),
    ],
)
def test_what_is_no_hostfile(tmp_path: Path, text: str, reason: str) -> None:
    """Each mistake is named with its file, and with its line where there is one."""
    file = tmp_path / "hosts"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputFileError, match=reason):
        read_hostfile(file)
    with pytest.raises(InputFileError, match="no such file"):
        read_hostfile(tmp_path / "nowhere")


def test_the_same_is_not_said_twice(tmp_path: Path) -> None:
    """Nodes on the command line beside a hostfile are refused, not overruled."""
    with pytest.raises(UsageError, match="--nodes is in the hostfile already"):
        with_hosts({"nodes": 3}, str(tmp_path / "hosts"))
