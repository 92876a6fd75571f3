"""What the reader of gpt-oss says beyond shapes."""

from __future__ import annotations

from planner.catalog.models import load_model


def test_every_layer_of_gpt_oss_has_sinks() -> None:
    """Those with a window, and those without."""
    oss = load_model("gpt-oss-20b").spec
    assert {group.block.attention.window_tokens for group in oss.groups} == {128, None}
    assert all(group.block.attention.sinks for group in oss.groups)
