"""Mixture of depths under reentrant checkpointing: the layers without a router decide the peak.

The package runs beside Transformers 4.42 and older only, so its operations are done here by a wrapper that
follows astramind-ai/Mixture-of-depths aff9e74 MoD/MoD.py ``MoD.forward`` step by step.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.extras import import_or_skip

torch = import_or_skip("torch")
import_or_skip("transformers")

from live_bytes import counting
from real_models import build
from scenarios import BATCH, LENGTH, Setup

_CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


class _Routed(torch.nn.Module):
    """A layer that takes the tokens of the highest scores: all but one at first, fewer in each pass."""

    def __init__(self, block: Any, width: int) -> None:
        super().__init__()
        self.router = torch.nn.Linear(width, 1)
        self.block = block
        self.passes = 0
        self.taken: list[int] = []

    def forward(self, x: Any, *args: Any, position_embeddings: Any, **kwargs: Any) -> Any:
        """Chosen tokens run through the layer and are weighed by their scores; the others go by."""
        del args
        weights = self.router(x.to(self.router.weight.dtype)).squeeze(-1).to(x.dtype)
        self.passes += 1
        kept = max(1, int((0.125 + 0.875 / self.passes) * x.shape[1]))
        least = torch.topk(weights, kept, dim=1).values[:, -1]
        chosen = weights > least.unsqueeze(-1)
        done = torch.zeros_like(x)
        kwargs.update(attention_mask=None, position_ids=None)
        for row, mask in enumerate(chosen):
            turned = tuple(each[min(row, len(each) - 1)][mask].unsqueeze(0) for each in position_embeddings)
            tokens = x[row][mask].unsqueeze(0)
            self.taken.append(tokens.shape[1])
            done[row][mask] = self.block(tokens, position_embeddings=turned, **kwargs)[0]
            done[row][mask] = done[row][mask] * weights[row][mask].unsqueeze(-1)
        return done + x * (~chosen).unsqueeze(-1).to(x.dtype)


def _peaks(*, routed: bool, passes: int) -> tuple[list[int], list[int]]:
    """The most bytes alive in each of ``passes`` micro-steps, and the tokens that routed layers took."""
    model = build(_CONFIG, Setup(dtype="fp32", checkpointing=True, reentrant=True))
    wrapped = []
    if routed:
        for number in range(1, len(model.model.layers), 2):
            model.model.layers[number].gradient_checkpointing = False
            layer = _Routed(model.model.layers[number], _CONFIG["hidden_size"])
            model.model.layers[number] = _Again(layer)
            wrapped.append(layer)
    model.enable_input_require_grads()
    ids = torch.randint(128, (BATCH, LENGTH))
    peaks = []
    for _ in range(passes):
        with counting() as bytes_:
            model(input_ids=ids, labels=ids).loss.backward()
        peaks.append(bytes_.peak)
        model.zero_grad()
    return peaks, [count for layer in wrapped for count in layer.taken]


class _Again(torch.nn.Module):
    """Runs a layer again in the backward pass, as the model's own layers do."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, **kwargs: Any) -> Any:
        """The layer under reentrant checkpointing."""
        from torch.utils.checkpoint import checkpoint

        return checkpoint(lambda given: self.layer(given, **kwargs), x, use_reentrant=True)


def test_layers_without_a_router_decide_the_peak() -> None:
    """The first step, which takes nearly all tokens in forward, included."""
    plain, _ = _peaks(routed=False, passes=3)
    routed, taken = _peaks(routed=True, passes=3)
    assert max(taken) == LENGTH - 1, "the first pass takes all tokens but one"
    assert min(taken) < LENGTH / 2
    assert max(routed) == pytest.approx(max(plain), rel=0.02)
