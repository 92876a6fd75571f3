"""Attention over a divided sequence, one head of keys at a time: tensors counted by hand.

The sizes and their order are those of ring-flash-attn 0.1.8 itself, run on a group of four fake processes.
"""

from __future__ import annotations

from collections import Counter

from planner.program.step import parts_of
from tests.jobs import job_by

PARTS, QUERIES, KEYS, WIDTH = 4, 32, 8, 128
FLAGS = {"model": "llama-3.1-8b", "method": "lora", "gpu": "h100-sxm:4", "stack": "axolotl", "seq": 4096}
DIVIDED = {"context_parallel": PARTS, "padding": "packed", "attention": "flash2", "batch": 1}


def test_tensors_of_attention() -> None:
    """Bytes for each token of this GPU: two heads of keys on their way, outputs by groups of queries,
    joined at the end; backward one head of gradients beside them.
    """
    job = job_by({**FLAGS, **DIVIDED, "gradient_checkpointing": False})
    layer = next(part.template for part in parts_of(job) if part.count > 1)
    made = Counter(
        (op, int(n_bytes))
        for (module, op), n_bytes in zip(layer.ops, layer.unit_bytes, strict=True)
        if module == "self_attn"
    )
    head, together = 2 * WIDTH, QUERIES // KEYS
    assert made["empty", 2 * PARTS * head] == 2 + 3
    assert made["copy of a head for all_gather", head] == 2
    assert made["clone", head] == 2 * (KEYS - 1)
    assert made["reduce_scatter of keys", head] == 2 * KEYS
    assert made["flash_attention", together * head] == KEYS
    assert made["cat", QUERIES * head] >= 1
    # Accumulators in fp32; the gradients of keys and values are as large.
    assert made["flash_attention_backward", together * 4 * WIDTH] == KEYS + 2
    assert made["flash_attention_backward", PARTS * together * head] == 2 * KEYS
    assert made["flash_attention_backward", 2 * head] == 1
