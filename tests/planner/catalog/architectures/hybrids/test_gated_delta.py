"""What the readers of Qwen3.5 and Qwen3-Next say: order of layers, widths of the delta rule, and towers."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.domain.model import ModelSpec
from planner.errors import InputFileError, NotModelledError

H, V = 64, 512
LINEAR, FULL = "linear_attention", "full_attention"
SIZES = {
    "hidden_size": H, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": V,
    "num_hidden_layers": 8, "intermediate_size": 96, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 8,
}  # fmt: skip
DENSE = {"model_type": "qwen3_5_text", **SIZES}
NEXT = {
    "model_type": "qwen3_next", **SIZES, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
}  # fmt: skip


def spec(base: dict[str, Any], **more: Any) -> ModelSpec:
    """The model of a small configuration."""
    return model_from_config(base | more, "x")


def order(model: ModelSpec) -> list[tuple[int, bool]]:
    """Layers in a row alike: how many, and whether they attend."""
    return [(group.count, group.block.mixer is None) for group in model.groups]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, [(3, False), (1, True), (3, False), (1, True)]),
        ({"full_attention_interval": 8}, [(7, False), (1, True)]),
        ({"full_attention_interval": 1}, [(8, True)]),
        ({"layer_types": [FULL] + [LINEAR] * 7}, [(1, True), (7, False)]),
    ],
)
def test_every_fourth_layer_attends(said: dict[str, Any], found: list[tuple[int, bool]]) -> None:
    """Unless an interval or a list says otherwise."""
    assert order(spec(DENSE, **said)) == found


def widths(model: ModelSpec, mixed: bool) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the projections of the first layer with a mixer, or without one."""
    block = next(each.block for each in model.groups if (each.block.mixer is not None) == mixed)
    return {
        each.name: (each.in_features, each.out_features)
        for each in block.linears
        if each.group == "attention"
    }


def test_projections_by_hand() -> None:
    """Two keys of 16 twice (query and key), four values of 8; the query of attention carries its gate."""
    assert widths(spec(DENSE), True) == {
        "in_proj_qkv": (H, 2 * 32 + 32),
        "in_proj_z": (H, 32),
        "in_proj_b": (H, 4),
        "in_proj_a": (H, 4),
        "out_proj": (32, H),
    }
    fused = widths(spec(NEXT), True)
    assert fused == {"in_proj_qkvz": (H, 2 * 32 + 2 * 32), "in_proj_ba": (H, 8), "out_proj": (32, H)}
    assert widths(spec(DENSE), False) == {
        "q_proj": (H, 2 * 128),
        "k_proj": (H, 64),
        "v_proj": (H, 64),
        "o_proj": (128, H),
    }


def test_parameters_beside_the_matrices() -> None:
    """A convolution of 4 over 96 features without a bias, two numbers for each head of values."""
    block = spec(DENSE).groups[0].block
    assert block.extra_params == 96 * 4 + 2 * 4
    assert [(norm.width, norm.rows_per_token) for norm in block.norms if norm.on == "mixer"] == [(8, 4)]
    assert spec(DENSE).groups[1].block.attention.rotary_width == 8


def test_a_text_part_without_a_tower() -> None:
    """What the class of the text loads; with one it is the architecture of the whole."""
    alone = spec({"model_type": "qwen3_5", "text_config": SIZES})
    assert (alone.vision, alone.param_count) == (None, spec(DENSE).param_count)
    vision = {"hidden_size": 32, "num_heads": 2, "depth": 2, "intermediate_size": 64, "out_hidden_size": H}
    whole = spec({"model_type": "qwen3_5", "text_config": SIZES, "vision_config": vision})
    assert whole.architecture == "qwen3_5"
    assert whole.vision is not None
    assert whole.vision.deepstack == ()


def test_what_cannot_be_built_is_refused() -> None:
    """Heads that do not divide, a list of another length, a kind of nobody."""
    with pytest.raises(InputFileError, match="3 is not divisible by linear_num_key_heads 2"):
        spec(DENSE, linear_num_value_heads=3)
    with pytest.raises(InputFileError, match="names 1 layers, num_hidden_layers is 8"):
        spec(DENSE, layer_types=[FULL])
    with pytest.raises(NotModelledError, match="layers of type 'conv'"):
        spec(DENSE, layer_types=["conv"] * 8)
