"""The fewest GPUs: what the most of them show spares estimates, and changes no answer."""

from __future__ import annotations

import json
import math
import shlex

import pytest

from planner.cli.main import main
from planner.searching import solve

SEARCH = (
    "search --model llama-3.2-1b --method full --gpu rtx3060-12g --seq 512 --batch 1 --loss hf "
    "--attention sdpa --gradient-checkpointing --optimizer adamw_torch --solve gpus --json"
)


def test_what_lacks_much_on_the_most_gpus_is_not_tried_on_fewer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DDP keeps all states of 1.2 B parameters on each card: one estimate of it is enough."""
    answers = []
    for share in (0.2, math.inf):
        monkeypatch.setattr(solve, "_LACKS_MUCH", share)
        assert main(shlex.split(SEARCH)) == 0
        answers.append(json.loads(capsys.readouterr().out))
    some, every = answers
    assert [row["arguments"] for group in some["groups"] for row in group["recipes"]] == [
        row["arguments"] for group in every["groups"] for row in group["recipes"]
    ]
    assert some["n_tried"] < every["n_tried"]
