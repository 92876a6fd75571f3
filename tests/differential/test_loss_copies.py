"""Copies of the logits that the loss of Transformers 5.23 makes, counted on its own code, against the stack's switches."""

from __future__ import annotations

from typing import Any

import pytest
from scenarios import SIZES, Setup, job

from planner.memory.logits import logits_backward_bytes, logits_forward_bytes
from tests.extras import import_or_skip

torch = import_or_skip("torch")
import_or_skip("transformers")

VOCAB, LENGTH = 32768, 40
CONFIG = {
    "model_type": "llama",
    **SIZES,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "vocab_size": VOCAB,
}


def real_peaks(dtype: Any, batch: int) -> tuple[float, float]:
    """(forward, backward) bytes per logit at the peaks of head and loss, the outputs dropped between, as the Trainer does."""
    from live_bytes import counting
    from real_models import build

    model = build(CONFIG, Setup(dtype=dtype))
    for tensor in model.parameters():
        tensor.grad = torch.zeros_like(tensor)
    ids = torch.randint(0, VOCAB, (batch, LENGTH))
    with counting() as bytes_:
        output = model(input_ids=ids, labels=ids, use_cache=False)
        forward, loss = bytes_.peak, output.loss
        assert output.logits.dtype.itemsize == (2 if dtype == "bf16" else 4)
        del output
        bytes_.peak = bytes_.live
        loss.backward()
    return forward / (batch * LENGTH * VOCAB), bytes_.peak / (batch * LENGTH * VOCAB)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("dtype", "forward", "backward"), [("bf16", 10, 12), ("fp32", 8, 12)])
def test_bytes_per_logit(dtype: Any, forward: int, backward: int, batch: int) -> None:
    """10 bytes per bf16 logit when the loss is computed and 12 in its backward, at any batch; all else is under 5 %."""
    case = job(CONFIG, Setup(dtype=dtype))
    logits = case.tokens * VOCAB
    assert logits_forward_bytes(case) == forward * logits
    assert logits_backward_bytes(case) == backward * logits
    real_forward, real_backward = real_peaks(dtype, batch)
    assert forward <= real_forward <= 1.05 * forward
    assert backward <= real_backward <= 1.05 * backward
