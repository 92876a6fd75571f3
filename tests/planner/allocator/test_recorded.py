"""Histories of a real allocator, replayed: torch 2.11 on an H100 (driver 580.159), first steps of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.allocator.documents.history import events_from_history, reserved_timeline
from planner.allocator.documents.history_file import read_history
from planner.allocator.replay import replay

HISTORIES = sorted((Path(__file__).parent / "recorded").glob("*.jsonl.gz"))


@pytest.mark.parametrize("file", HISTORIES, ids=lambda file: file.name.partition(".jsonl")[0])
def test_the_model_reserves_what_the_card_did(file: Path) -> None:
    """To the byte: which free block serves a request is decided by addresses, too, and those of the model are
    in the order of the driver's.
    """
    history = read_history(file).history
    assert replay(events_from_history(history)).peak_reserved_bytes == max(reserved_timeline(history))
