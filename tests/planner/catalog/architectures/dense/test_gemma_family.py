"""What the readers of Gemma 2 and 3 say beyond shapes."""

from __future__ import annotations

from planner.catalog.models import load_model


def test_gemma_2_caps_scores_and_logits_and_gemma_3_neither() -> None:
    """Every sixth layer of Gemma 3 sees everything, the others 512 tokens."""
    gemma2 = load_model("gemma-2-2b").spec
    gemma3 = load_model("gemma-3-1b").spec
    assert (gemma2.logit_softcap, gemma2.groups[0].block.attention.softcap) == (True, True)
    assert (gemma3.logit_softcap, gemma3.groups[0].block.attention.softcap) == (False, False)
    found = [(group.count, group.block.attention.window_tokens) for group in gemma3.groups]
    assert found == [(5, 512), (1, None)] * 4 + [(2, 512)]
