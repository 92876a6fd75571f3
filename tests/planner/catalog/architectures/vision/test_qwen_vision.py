"""What the readers of Qwen's vision models say: windows, and layers that are stacked."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.domain.vision import TowerSpec
from planner.errors import InputFileError

W, INNER, OUT = 64, 96, 48
TEXT = {
    "hidden_size": OUT, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96,
}  # fmt: skip
QWEN2 = {"embed_dim": W, "num_heads": 4, "depth": 3, "mlp_ratio": 2, "hidden_size": OUT}
QWEN2_5 = {"hidden_size": W, "num_heads": 4, "depth": 10, "intermediate_size": INNER, "out_hidden_size": OUT}
QWEN3 = {**QWEN2_5, "deepstack_visual_indexes": [2, 5, 12], "num_position_embeddings": 16}


def tower(kind: str, vision: dict[str, Any], **more: Any) -> TowerSpec:
    """The tower of a small configuration."""
    found = model_from_config(
        {"model_type": kind, "text_config": TEXT, "vision_config": vision | more}, "x"
    ).vision
    assert found is not None
    return found


def layers(spec: TowerSpec) -> dict[str, int]:
    """Layers by what each patch sees."""
    return {group.block.attention.pieces: group.count for group in spec.groups}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, {"window": 9, "image": 1}),
        ({"fullatt_block_indexes": [0, 9, 10, 9]}, {"window": 8, "image": 2}),
        ({"fullatt_block_indexes": list(range(10))}, {"image": 10}),
        ({"depth": 3}, {"window": 3}),
    ],
)
def test_some_layers_see_the_whole_image(said: dict[str, Any], found: dict[str, int]) -> None:
    """Those that are listed and exist, each once; by default 7, 15, 23 and 31."""
    assert layers(tower("qwen2_5_vl", QWEN2_5, **said)) == found


@pytest.mark.parametrize(("pixels", "tokens"), [(112, 64), (224, 256)])
def test_a_window_is_a_square_of_patches(pixels: int, tokens: int) -> None:
    """112 pixels are 8 patches of 14."""
    spec = tower("qwen2_5_vl", QWEN2_5, window_size=pixels)
    assert spec.groups[0].block.attention.window_tokens == tokens


def test_qwen3_stacks_what_it_saw_in_between() -> None:
    """A merger for each listed layer; what lies behind the last layer is never reached."""
    spec = tower("qwen3_vl", QWEN3)
    assert spec.deepstack == (2, 5)
    assert [group.count for group in spec.stacked] == [3]
    assert spec.entry.extra_params == 16 * W
    assert (tower("qwen3_vl", QWEN3, deepstack_visual_indexes=[]).stacked, spec.token_share) == (
        (),
        0.25,
    )


def test_heads_divide_the_width() -> None:
    """Or the tower cannot be built."""
    with pytest.raises(InputFileError, match="width 64 is not divisible by its 5 heads"):
        tower("qwen2_vl", QWEN2, num_heads=5)
