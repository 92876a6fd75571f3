"""Building blocks of architectures: shapes and counts worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.parts import (
    fused_experts,
    fused_gated_mlp,
    fused_qkv,
    gated_mlp,
    group_layers,
    reached_by_peft,
    rms,
    rotary_width,
    router,
    separate_qkv,
)
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockSpec, MlpSpec
from planner.errors import InputFileError

# Query 8 x 16, key 2 x 16, value 2 x 12, output 8 x 12.
ATTENTION = AttentionSpec(n_heads=8, n_kv_heads=2, head_dim=16, value_head_dim=12)
MOE = MlpSpec(32, gated=True, activation="silu", n_experts=4, top_k=2)


def test_equal_layers_are_counted_row_by_row() -> None:
    """The order stays: it decides the fullest moment, and what is free when the next pass asks."""
    far = BlockSpec(ATTENTION, MOE, (), (rms(64),))
    near = replace(far, attention=replace(ATTENTION, window_tokens=128))
    layers = (near, near, far, near)
    assert [(each.count, each.block) for each in group_layers(layers)] == [(2, near), (1, far), (1, near)]


def test_one_matrix_is_as_wide_as_those_it_replaces() -> None:
    """Keys and values have fewer heads, values narrower ones."""
    wide = separate_qkv(ATTENTION, 64)
    assert [each.out_features for each in wide] == [128, 32, 24, 64]
    qkv, dense = fused_qkv(ATTENTION, 64, ("qkv", "dense"), biases=(True, False))
    assert (qkv.out_features, qkv.bias, dense.in_features, dense.bias) == (184, True, 96, False)
    assert [each.weight_count for each in fused_gated_mlp(64, 32)] == [64 * 64, 32 * 64]


def test_a_rotary_share_is_a_part_of_the_head() -> None:
    """The newer table wins over the older name; a share of nothing or of more than all is refused."""
    older, newer = {"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.25}}
    for said, width in (({}, 96), (older, 48), (older | newer, 24)):
        assert rotary_width(ConfigFields(said, "x"), 96, 1.0) == width
    for wrong in (0, 1.01, True, "0.5"):
        with pytest.raises(InputFileError, match=r"x: .*'partial_rotary_factor' must be a number above 0"):
            rotary_width(ConfigFields({"partial_rotary_factor": wrong}, "x"), 96, 1.0)


def test_names_of_fused_experts_mean_the_experts_alone() -> None:
    """An adapter on two fused matrices has two ranks; dense matrices of these names get none."""
    linears = (*separate_qkv(ATTENTION, 64), *gated_mlp(64, 48), *fused_experts(64, MOE), router(64, 4))
    *rest, gate_up, down, gate = reached_by_peft(linears, ("gate_proj", "up_proj"), "down_proj")
    assert [each.name for each in rest if each.adaptable] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert (gate_up.legacy_names, gate_up.rank_factor) == (("gate_proj", "up_proj"), 2)
    assert (down.legacy_names, gate.legacy_names) == (("down_proj",), ("gate",))
    # 4 experts of 64 x 64 and 32 x 64.
    assert (gate_up.weight_count, down.weight_count) == (16_384, 8_192)
