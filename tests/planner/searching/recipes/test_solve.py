"""The fewest GPUs, and the longest samples."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from typing import Any

import pytest

from planner.cli.main import main
from planner.searching.recipes.pool import Pool

DIVIDED = (
    "search --model qwen3-30b-a3b --method full --gpu h100-sxm --seq 2048 --batch 1 --gradient-checkpointing "
    "--solve gpus --json --expert-parallel "
)


def test_numbers_of_gpus_that_are_no_groups_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Experts that eight GPUs divide: nothing is tried on fewer, and 24 nodes, which FSDP2 refuses, end
    no search.
    """
    assert main(shlex.split(DIVIDED + "8")) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    first = group["recipes"][0]["arguments"]
    assert first[first.index("--gpus") + 1] == "8"
    assert "--nodes" not in first


@pytest.mark.parametrize(
    ("degree", "code", "said"), [("5", 2, "divides into groups of 5"), ("256", 6, "do not divide by 256")]
)
def test_why_no_number_of_gpus_is_tried(
    degree: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No group of five, and 128 experts that 256 GPUs cannot divide."""
    assert main(shlex.split(DIVIDED + degree)) == code
    assert said in capsys.readouterr().err


def test_lengths_begin_where_the_images_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """A picture of 640 x 480 pixels is 3,328 tokens, and what was said is no reason to refuse all lengths."""
    search = (
        "search --model internvl3-1b --method lora --gpu 4090 --images-per-sample 1 --image-size 640x480 "
        "--loss liger --attention sdpa --gradient-checkpointing --offload none --solve seq --json"
    )
    assert main(shlex.split(search)) == 0
    found = json.loads(capsys.readouterr().out)
    (group,) = found["groups"]
    lengths = [each["arguments"][each["arguments"].index("--seq") + 1] for each in group["recipes"]]
    assert int(lengths[0]) > 3328
    assert set(lengths) <= set(found["tried"]["length"])


def test_no_size_is_tried_twice_and_the_next_above_the_largest_is_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recipes are counted once, and the answer says what one step more would need."""
    tried, tries = Counter[tuple[str, str]](), Pool.tries

    def noted(pool: Pool, option: Any, model: Any, more: dict[str, str]) -> Any:
        tried[str(option.flags), more["seq"]] += 1
        return tries(pool, option, model, more)

    monkeypatch.setattr(Pool, "tries", noted)
    search = (
        "search --model llama-3.2-1b --method qlora --gpu 4060 --batch 1 --loss hf --attention flash2 "
        "--no-gradient-checkpointing --offload none --solve seq --json"
    )
    assert main(shlex.split(search)) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    arguments = group["recipes"][0]["arguments"]
    largest = int(arguments[arguments.index("--seq") + 1])
    assert {str(largest), str(largest + 64)} <= {length for _, length in tried}
    assert set(tried.values()) == {1}
