"""Llama 4's tower: layers over the patches of a tile, an adapter that makes a token of four, and a projector.

Module names, shapes and defaults are those of Transformers 5.23 (``models/llama4/``); how many tiles an
image is cut into those of its ``image_processing_llama4.py``.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.parts import layer_norm, plain_mlp
from planner.catalog.architectures.vision.counted_towers import side_of
from planner.catalog.architectures.vision.qwen_vision import NO_ATTENTION
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockGroup, BlockSpec, LinearSpec, MlpSpec
from planner.domain.vision import ImageRule, TowerSpec

_MAX_TILES = 16
_SHARE = 0.5
"""Sides of what is joined to one token, which is four patches."""


def llama4_tower(vision: ConfigFields, hidden: int) -> TowerSpec:
    """The tower of ``vision_config`` in front of a language model of this width."""
    width = vision.integer("hidden_size", default=768)
    heads = vision.integer("num_attention_heads", default=16)
    side, patch = side_of(vision, "image_size", 448), side_of(vision, "patch_size", 14)
    if width % heads:
        raise vision.fail(f"hidden_size {width} is not divisible by num_attention_heads {heads}")
    grid, n_pixels = side // patch, vision.integer("num_channels", default=3) * patch**2
    entry = BlockSpec(
        NO_ATTENTION,
        MlpSpec(0, False, ""),
        (LinearSpec("linear", "embedding_projection", n_pixels, width, "embed"),),
        (layer_norm(width),),
        extra_params=(grid**2 + 2) * width,
    )
    share = vision.data.get("pixel_shuffle_ratio", _SHARE)
    tower = TowerSpec(
        "llama4",
        width,
        _rule(side, patch, tokens=grid**2 // 4),
        entry,
        (BlockGroup(vision.layers("num_hidden_layers", default=34), _layer(vision, width, heads)),),
        (BlockGroup(1, _projector(vision, hidden)),),
        grid**2 / 4 / (grid**2 + 1),
        stacked=(BlockGroup(1, _adapter(vision)),),
        behind=(layer_norm(width),),
        listed=True,
    )
    drops = any(map(vision.data.get, ("attention_dropout", "projector_dropout")))
    is_modelled = share == _SHARE and grid % 2 == 0 and not drops
    return tower if is_modelled else replace(tower, code="counted")


def _rule(side: int, patch: int, tokens: int) -> ImageRule:
    """All canvases of up to ``_MAX_TILES`` tiles, by height and width; the processor computes in bf16."""
    tiles = [
        (rows, count // rows)
        for count in range(_MAX_TILES, 0, -1)
        for rows in range(1, count + 1)
        if count % rows == 0
    ]
    canvases = tuple((rows * side, columns * side) for rows, columns in tiles)
    return ImageRule(
        "fitted", patch, side_pixels=side, tokens=tokens, extra_patches=1, canvases=canvases, pixel_bytes=2
    )


def _layer(vision: ConfigFields, width: int, heads: int) -> BlockSpec:
    inner, size = vision.integer("intermediate_size", default=5632), width // heads
    attention = AttentionSpec(heads, heads, size, size, rotary_form="complex", rotary_result="fp32")
    linears = tuple(
        LinearSpec(f"{name}_proj", "attention", width, width, "attn_in", bias=True) for name in "qkv"
    )
    linears += (LinearSpec("o_proj", "attention", width, width, "attn_out", bias=True),)
    return BlockSpec(
        attention,
        MlpSpec(inner, gated=False, activation="gelu"),
        linears + plain_mlp(width, inner, ("fc1", "fc2"), bias=True),
        (layer_norm(width, copies=2),),
    )


def _adapter(vision: ConfigFields) -> BlockSpec:
    """Two matrices without biases over four patches at once."""
    inner = vision.integer("intermediate_size", default=5632)
    given = vision.integer("projector_input_dim", default=4096)
    made = vision.integer("projector_output_dim", default=4096)
    linears = (
        LinearSpec("fc1", "mlp", inner, given, "mlp_in"),
        LinearSpec("fc2", "mlp", made, made, "mlp_mid"),
    )
    return BlockSpec(NO_ATTENTION, MlpSpec(given, False, "gelu"), linears, ())


def _projector(vision: ConfigFields, hidden: int) -> BlockSpec:
    seen = vision.integer("vision_output_dim", default=7680)
    return BlockSpec(
        NO_ATTENTION, MlpSpec(0, False, ""), (LinearSpec("linear_1", "mlp", seen, hidden, "mlp_in"),), ()
    )
