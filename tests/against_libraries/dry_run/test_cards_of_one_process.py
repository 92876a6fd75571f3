"""One process that trains on several pretended cards: each has its own memory and statistics."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from measure.dry_run.cuda.card import CardFacts
from measure.dry_run.cuda.compile import compiled_library
from measure.dry_run.messages import ProgramJob
from measure.dry_run.parent import DryRun, dry_run
from planner.allocator.replay import replay
from planner.errors import NotModelledError
from planner.units import MIB
from tests.extras import needs

pytestmark = [
    pytest.mark.real,
    needs("torch", "transformers", "peft", "accelerate"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]
TWO = """
import torch
first = torch.nn.Linear(1024, 2048, bias=False).to("cuda:0")
second = torch.nn.Linear(2048, 4096, bias=False).to("cuda:1")
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()])
for step in range(2):
    hidden = first(torch.randn(512, 1024, device="cuda:0")).to("cuda:1")
    assert hidden.get_device() == 1 and torch.cuda.current_device() == 0
    second(hidden).sum().backward()
    optimizer.step()
    assert [torch.cuda.memory_allocated(card) // 2**20 for card in (0, 1)] == [32, 84], "by card"
"""
ALONE = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(2):
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


def ran(folder: Path, program: str) -> DryRun:
    """The program on a machine with two cards."""
    (folder / "train.py").write_text(program, encoding="utf-8")
    facts = CardFacts("NVIDIA A100", (8, 0), 80 * 2**30, 108, 2)
    words = ("python", "train.py")
    return dry_run(
        ProgramJob(str(compiled_library()), "", words, facts, 2, 300.0, "", trust_remote_code=False)
    )


def test_each_card_has_what_is_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 MiB of weights with as much of gradients, and 32; two workspaces for products on both."""
    monkeypatch.chdir(tmp_path)
    cards = ran(tmp_path, TWO).cards
    assert list(cards) == [0, 1]
    weights = [max(each.n_bytes for each in own if each.phase == "load") // MIB for own in cards.values()]
    assert weights == [8, 32]
    assert all(any(each.op.startswith("cuBLAS") for each in own) for own in cards.values())
    assert all(replay(own).peak_allocated_bytes > 16 * MIB for own in cards.values())


def test_a_card_that_stays_empty_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain program takes the first one."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotModelledError, match="2 cards are named, and 1 processes train on 1 each"):
        ran(tmp_path, ALONE)
