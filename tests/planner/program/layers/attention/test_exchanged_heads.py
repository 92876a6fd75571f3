"""Attention over a sequence whose heads GPUs exchange: tensors in the order in which DeepSpeed makes them.

Its own module (0.19.8) was run on a group of four fake processes: the same tensors, but for those of the
kernel, which on a CPU is another.
"""

from __future__ import annotations

import pytest

from planner.program.step import parts_of
from tests.jobs import job_by, typed

FLAGS = typed(
    "--model llama-3.1-8b --method lora --stack trl --sharding zero2 --padding packed --attention flash2"
)
QUERY, KEY = 32 * 128 * 2, 8 * 128 * 2
"""Bytes for each token of this GPU."""


def moved(parts: int) -> list[tuple[str, int]]:
    """Copies and exchanges of attention on one of so many GPUs."""
    flags = {**FLAGS, "gpu": f"h100-sxm:{parts}", "context_parallel": parts, "seq": 1024 * parts, "batch": 1}
    job = job_by({**flags, "gradient_checkpointing": False})
    layer = next(part.template for part in parts_of(job) if part.count > 1)
    return [
        (op, int(n_bytes))
        for (module, op), n_bytes in zip(layer.ops, layer.unit_bytes, strict=True)
        if module == "self_attn" and op in ("clone", "all_to_all", "sum")
    ]


@pytest.mark.parametrize(("parts", "heads_of_keys"), [(4, 2), (8, 1)])
def test_copies_and_exchanges(parts: int, heads_of_keys: int) -> None:
    """A GPU with one head of keys has it in order as it comes, and as it goes back."""
    several = heads_of_keys > 1
    first = [("clone", KEY)] if several else []
    forward = [("clone", QUERY), ("all_to_all", QUERY)]
    forward += 2 * [("clone", KEY), ("all_to_all", KEY)] + [("clone", QUERY)] + 2 * first
    forward += [("clone", QUERY), ("all_to_all", QUERY), ("clone", QUERY)]
    backward = [("clone", QUERY), ("all_to_all", QUERY)]
    backward += 2 * [*first, ("all_to_all", KEY), *first]
    backward += [("clone", QUERY), ("all_to_all", QUERY), ("clone", QUERY)]
    assert moved(parts)[: len(forward) + len(backward)] == forward + backward


def test_one_head_of_keys_for_several_gpus_is_copied() -> None:
    """Sixteen GPUs and eight heads of keys: two copies of each, whose gradients are summed."""
    made = moved(16)
    assert made.count(("all_to_all", 2 * KEY)) == 4
    assert made.count(("sum", KEY)) == 2
