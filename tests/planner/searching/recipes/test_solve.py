"""The fewest GPUs: what the most of them show spares estimates, and changes no answer."""

from __future__ import annotations

import json
import math
import shlex

import pytest

from planner.cli.main import main
from planner.searching.recipes import solve
from planner.searching.recipes.space import Option

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


# Settings are left open, so that whole logits, kept activations and states of the optimizer are tried, too.
OPEN = (
    "search --model llama-3.2-1b --gpu rtx3060-12g --seq 512 --batch 1 --attention sdpa "
    "--sharding zero2,zero3 --offload none --solve gpus --json --method "
)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_what_needs_more_than_a_recipe_that_lacks_much_is_not_tried(
    method: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where checkpointing, a fused loss and small states are not enough, nothing that spends more is."""
    answers = []
    for is_leaner in (Option.is_leaner, lambda one, other: False):
        monkeypatch.setattr(Option, "is_leaner", is_leaner)
        main(shlex.split(OPEN + method))
        answers.append(json.loads(capsys.readouterr().out))
    some, every = answers
    assert [row["arguments"] for group in some["groups"] for row in group["recipes"]] == [
        row["arguments"] for group in every["groups"] for row in group["recipes"]
    ]
    assert [group["nearest"] for group in some["groups"]] == [group["nearest"] for group in every["groups"]]
    assert some["n_tried"] < every["n_tried"] or method == "lora"


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
