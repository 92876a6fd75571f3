"""What the readers of Llama and its kin say beyond shapes."""

from __future__ import annotations

from planner.catalog.models import load_model


def test_every_fourth_layer_of_smollm3_has_no_positions() -> None:
    """Nine of 36."""
    smol = load_model("smollm3-3b").spec
    found = [(group.count, group.block.attention.position) for group in smol.groups]
    assert found == [(3, "rope"), (1, "none")] * 9
