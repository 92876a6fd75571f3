"""Modules that ZeRO-3 gathers whole: what comes with them, and when their gradients go."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planner.program.engines.zero.test_zero12 import stream_of

LAYER = "layer 0"
JOB = {
    "model": "qwen1.5-moe-a2.7b",
    "sharding": "zero3",
    "gpus": "8",
    "stack": "hf-trainer@5",
    "gradient_checkpointing": "true",
    "seq": "512",
}
HIDDEN, EXPERTS = 2048, 60 * 2048 * 1408
OF_MIXTURE = [
    (LAYER, name) for name in ("gate", "experts", "gate_proj", "up_proj", "down_proj", "shared_expert_gate")
]
MIXTURE = 3 * EXPERTS + 3 * HIDDEN * 5632 + 60 * HIDDEN + HIDDEN


def _gathered(**flags: Any) -> list[int]:
    """Bytes of the flat buffers that parameters of the first layer arrive in, in its first forward pass."""
    stream, sizes = stream_of(**JOB | flags)
    begin, end = (next(at for at, name in stream.phases if name == phase) for phase in ("forward", "loss"))
    events = [each for each in stream.events[begin:end] if each >= 0]
    places = {each: stream.place(each) for each in events}
    return [sizes[each] for each in events if places[each][0] == LAYER and "flat" in places[each][2]]


@pytest.mark.parametrize(
    ("leaves", "arrives"),
    [("none", 3 * EXPERTS), ("Qwen2MoeExperts", 3 * EXPERTS), ("Qwen2MoeSparseMoeBlock", MIXTURE)],
)
def test_a_mixture_arrives_whole(leaves: str, arrives: int) -> None:
    """Its experts are one module anyway; router and shared expert come with them."""
    assert max(_gathered(switches=[f"zero3_leaves={leaves}"])) == pytest.approx(2 * arrives, rel=1e-4)


def test_deepspeed_gathers_three_mixtures_whole_by_itself() -> None:
    """From 0.18.0 on."""
    since, before = (_gathered(versions=[f"deepspeed=={each}"]) for each in ("0.18.0", "0.17.5"))
    assert max(since) > max(before)


def test_gradients_of_a_mixture_wait_for_its_backward() -> None:
    """Until then they lie beside those of its experts, whatever the bucket holds."""
    assert _gradients_at_once("Qwen2MoeSparseMoeBlock") == 2 * MIXTURE
    assert _gradients_at_once("none") < 2 * MIXTURE


def _gradients_at_once(leaves: str) -> int:
    """Most bytes of gradients of one mixture at a time; what waits for another stream is gone."""
    switches: Any = [f"zero3_leaves={leaves}"]
    stream, sizes = stream_of(**JOB, switches=switches)
    alive, most = set[int](), 0
    for event in stream.events:
        slot = event if event >= 0 else ~event
        if slot in sizes and stream.term(slot) == "gradients" and stream.place(slot)[:2] in OF_MIXTURE:
            alive ^= {slot}
            most = max(most, sum(sizes[each] for each in alive))
    return most
