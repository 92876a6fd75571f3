"""Jobs that do not fit, each for a reason of its own."""

from __future__ import annotations

from planner.domain.scenario import Scenario
from tests.jobs import resolved, typed

Flags = dict[str, object]
FULL_ON_SMALL: Flags = typed(
    "--model 7b --method full --gpu 4090 --seq 2048 --batch 4 --optimizer adamw_torch"
)
LORA_TOO_LONG: Flags = typed(
    "--model 7b --method lora --gpu 4090 --seq 2048 --batch 3 --modules-to-save lm_head"
)
MANY_CARDS: Flags = typed("--model 70b --method full --gpu h100-sxm:8 --nodes 2 --seq 4096 --precision bf16")
QLORA_ON_MANY: Flags = {"model": "70b", "method": "qlora", "gpu": "4090:4", "seq": "1024"}
QLORA_DIVIDED: Flags = typed(
    "--model 34b --method qlora --gpu a100-40-sxm:2 --gpu-memory 36GiB --seq 4096 --batch 2 --sharding fsdp"
)
OLD_CARD: Flags = {"model": "3b", "method": "full", "gpu": "t4", "seq": "2048"}
EAGER: Flags = typed("--model 7b --method lora --gpu 4090 --seq 4096 --attention eager --batch 2")
ZERO: Flags = typed("--model 14b --method full --gpu a100-40gb:4 --seq 1024 --sharding zero2 --batch 2")
FAR_TOO_LARGE: Flags = {"model": "70b", "method": "full", "gpu": "4090:2", "seq": "2048", "batch": "2"}
JOBS = {
    "far too large": FAR_TOO_LARGE,
    "full": FULL_ON_SMALL,
    "lora": LORA_TOO_LONG,
    "many": MANY_CARDS,
    "qlora": QLORA_ON_MANY,
    "t4": OLD_CARD,
    "eager": EAGER,
    "zero2": ZERO,
}


def scenario(flags: Flags) -> Scenario:
    """A resolved scenario."""
    return resolved(flags)
