"""Recurrent layers: cuDNN alone knows its memory, torch's own kernels are followed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from measure.dry_run.cuda.card import CardFacts
from measure.dry_run.cuda.compile import compiled_library
from measure.dry_run.messages import ProgramJob
from measure.dry_run.parent import DryRun, dry_run
from planner.errors import NotModelledError
from tests.extras import needs

pytestmark = [
    pytest.mark.real,
    needs("torch", "transformers", "peft", "accelerate"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]
BATCH, TOKENS, WIDTH, HIDDEN = 16, 8, 512, 1024
PROGRAM = f"""
import torch
torch.backends.cudnn.enabled = SWITCH
model = torch.nn.LSTM({WIDTH}, {HIDDEN}, batch_first=True).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(2):
    model(torch.randn({BATCH}, {TOKENS}, {WIDTH}, device="cuda"))[0].sum().backward()
    optimizer.step()
"""


def ran(folder: Path, switch: str) -> DryRun:
    """The program with cuDNN on or off."""
    (folder / "train.py").write_text(PROGRAM.replace("SWITCH", switch), encoding="utf-8")
    facts = CardFacts("NVIDIA A100", (8, 0), 80 * 2**30, 108, 1)
    words = ("python", "train.py")
    return dry_run(
        ProgramJob(str(compiled_library()), "", words, facts, 2, 300.0, "", trust_remote_code=False)
    )


def test_without_cudnn_each_step_is_one_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.13 aten/src/ATen/native/cuda/RNN.cu _thnn_fused_lstm_cell: both states, and four gates that are
    kept, of each token.
    """
    monkeypatch.chdir(tmp_path)
    (events,) = ran(tmp_path, "False").cards.values()
    made = [
        each.n_bytes
        for each in events
        if each.action == "alloc" and each.phase == "forward" and "fused_lstm_cell" in each.op
    ]
    state = 4 * BATCH * HIDDEN
    assert sorted(made) == [state] * 2 * TOKENS + [4 * state] * TOKENS


def test_what_cudnn_keeps_is_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the switch that makes it known."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotModelledError, match=r"cudnn\.enabled = False"):
        ran(tmp_path, "True")
