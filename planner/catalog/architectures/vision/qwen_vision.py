"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: a tower over patches of any number, a merger, and Qwen's decoder.

Module names, shapes and defaults are those of Transformers 5.23
(``models/{qwen2_vl,qwen2_5_vl,qwen3_vl}/modeling_*.py`` and ``configuration_*.py``).  Limits of pixels are
those of the published ``preprocessor_config.json`` files.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import (
    attention_of,
    decoder,
    head_norms,
    llama_block,
    with_windows,
)
from planner.catalog.architectures.mixtures.moe_family import read_qwen3_moe
from planner.catalog.architectures.parts import gated_mlp, layer_norm, plain_mlp, rms, unreached_by_peft
from planner.catalog.architectures.windows import qwen_windows
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockGroup, BlockSpec, LinearSpec, MlpSpec, ModelSpec, NormSpec
from planner.domain.vision import ImageRule, TowerSpec

NO_ATTENTION = AttentionSpec(1, 1, 1, 1, position="none")
_MIN_PIXELS, _MAX_PIXELS = 56 * 56, 12_845_056
"""Of Qwen/Qwen2.5-VL-7B-Instruct preprocessor_config.json (huggingface.co),
the same for all sizes of Qwen2-VL and Qwen2.5-VL.
"""

_QWEN3_MIN_PIXELS, _QWEN3_MAX_PIXELS = 65_536, 16_777_216
"""Of Qwen/Qwen3-VL-4B-Instruct preprocessor_config.json (``shortest_edge``, ``longest_edge``),
Qwen3-VL and Qwen3.5 alike.
"""


def text_fields(fields: ConfigFields) -> ConfigFields:
    """The fields of the language model: a section of their own,
    or beside the tower's as Qwen2-VL published them.
    """
    if not fields.has("text_config"):
        return ConfigFields({"max_window_layers": 80, **fields.data}, fields.where)
    inner = fields.section("text_config")
    outer = {name: fields.data[name] for name in ("tie_word_embeddings",) if fields.has(name)}
    return ConfigFields({"max_window_layers": 80, **inner.data, **outer}, inner.where)


def _language_model(fields: ConfigFields) -> ModelSpec:
    """Qwen2's decoder, whose positions have three numbers each."""
    text = text_fields(fields)
    block = llama_block(text, replace(attention_of(text, kv_default=8), heads_last=True), qkv_bias=True)
    spec = decoder(text, with_windows(block, qwen_windows(text, text.layers("num_hidden_layers"))))
    return replace(spec, architecture=fields.text("model_type", ""))


def pixel_rule(vision: ConfigFields, *, min_pixels: int, max_pixels: int, patch: int) -> ImageRule:
    """An image that is scaled until its pixels lie between limits."""
    return ImageRule(
        "resized",
        patch_pixels=vision.integer("patch_size", default=patch),
        merge=vision.integer("spatial_merge_size", default=2),
        frames=vision.integer("temporal_patch_size", default=2),
        min_pixels=min_pixels,
        max_pixels=max_pixels,
    )


def tower_attention(fields: ConfigFields, width: int, heads: int) -> AttentionSpec:
    """Attention over patches, query, key and value of one product, turned in fp32."""
    if width % heads:
        raise fields.fail(f"the tower's width {width} is not divisible by its {heads} heads")
    size = width // heads
    return AttentionSpec(
        heads, heads, size, size, fused_qkv=True, fused_parts="unbound", rotary_result="fp32", pieces="image"
    )


def attention_linears(width: int) -> tuple[LinearSpec, ...]:
    """``qkv`` and ``proj``, both with a bias."""
    return (
        LinearSpec("qkv", "attention", width, 3 * width, "attn_in", bias=True),
        LinearSpec("proj", "attention", width, width, "attn_out", bias=True),
    )


def patch_block(
    vision: ConfigFields, rule: ImageRule, width: int, *, bias: bool = False, extra_params: int = 0
) -> BlockSpec:
    """The convolution over patches as a matrix that neither PEFT nor quantisers take for one."""
    numbers = vision.integer("in_channels", "in_chans", default=3) * rule.frames * rule.patch_pixels**2
    conv = LinearSpec("proj", "embedding_projection", numbers, width, "embed", bias=bias, kind="parameter")
    return BlockSpec(NO_ATTENTION, MlpSpec(0, False, ""), (conv,), (), extra_params=extra_params)


def merger(
    width: int, hidden: int, merge: int, spec: NormSpec, names: tuple[str, str] = ("0", "2")
) -> BlockSpec:
    """A norm over each patch, and two matrices over the patches that become one token."""
    inside = width * merge**2
    linears = (
        LinearSpec(names[0], "mlp", inside, inside, "mlp_in", bias=True),
        LinearSpec(names[1], "mlp", inside, hidden, "mlp_mid", bias=True),
    )
    return BlockSpec(NO_ATTENTION, MlpSpec(inside, False, "gelu"), linears, (spec,))


def read_qwen2_vl(fields: ConfigFields) -> ModelSpec:
    """``qwen2_vl``: layer norms and plain matrices in the tower, whose layers all see the whole image."""
    spec, vision = _language_model(fields), fields.section("vision_config")
    width, heads = vision.integer("embed_dim", default=1280), vision.integer("num_heads", default=16)
    inner = width * vision.integer("mlp_ratio", default=4)
    block = BlockSpec(
        tower_attention(vision, width, heads),
        MlpSpec(inner, gated=False, activation=vision.text("hidden_act", "quick_gelu")),
        attention_linears(width) + plain_mlp(width, inner, ("fc1", "fc2"), bias=True),
        (layer_norm(width, copies=2),),
    )
    rule = pixel_rule(vision, min_pixels=_MIN_PIXELS, max_pixels=_MAX_PIXELS, patch=14)
    last = merger(width, vision.integer("hidden_size", default=3584), rule.merge, layer_norm(width))
    tower = TowerSpec(
        "qwen2_vl",
        width,
        rule,
        patch_block(vision, rule, width),
        (BlockGroup(vision.layers("depth"), block),),
        (BlockGroup(1, last),),
        1 / rule.merge**2,
        listed=True,
    )
    return replace(spec, vision=tower)


def read_qwen2_5_vl(fields: ConfigFields) -> ModelSpec:
    """``qwen2_5_vl``: RMS norms and gated matrices in the tower,
    most of whose layers see a window of the image.
    """
    spec, vision = _language_model(fields), fields.section("vision_config")
    width, heads = vision.integer("hidden_size", default=3584), vision.integer("num_heads", default=16)
    inner, n_layers = vision.integer("intermediate_size", default=3420), vision.layers("depth")
    rule = pixel_rule(vision, min_pixels=_MIN_PIXELS, max_pixels=_MAX_PIXELS, patch=14)
    whole = BlockSpec(
        tower_attention(vision, width, heads),
        MlpSpec(inner, gated=True, activation=vision.text("hidden_act", "silu")),
        attention_linears(width) + gated_mlp(width, inner, bias=True),
        (rms(width, copies=2),),
    )
    side = vision.integer("window_size", default=112) // rule.patch_pixels
    in_window = replace(whole, attention=replace(whole.attention, pieces="window", window_tokens=side**2))
    known = (
        vision.integers("fullatt_block_indexes") if vision.has("fullatt_block_indexes") else (7, 15, 23, 31)
    )
    n_whole = len({number for number in known if number < n_layers})
    groups = [BlockGroup(n_layers - n_whole, in_window), BlockGroup(n_whole, whole)]
    last = merger(width, vision.integer("out_hidden_size", default=3584), rule.merge, rms(width))
    tower = TowerSpec(
        "qwen2_5_vl",
        width,
        rule,
        patch_block(vision, rule, width),
        tuple(group for group in groups if group.count),
        (BlockGroup(1, last),),
        1 / rule.merge**2,
        listed=True,
    )
    return replace(spec, vision=tower)


def qwen3_tower(vision: ConfigFields, *, has_deepstack: bool = True) -> TowerSpec:
    """Qwen3-VL's tower: learned positions beside the turned ones; mergers behind some of its layers,
    but in Qwen3.5.
    """
    width, heads = vision.integer("hidden_size", default=1152), vision.integer("num_heads", default=16)
    inner, n_layers = vision.integer("intermediate_size", default=4304), vision.layers("depth")
    block = BlockSpec(
        tower_attention(vision, width, heads),
        MlpSpec(inner, gated=False, activation=vision.text("hidden_act", "gelu_pytorch_tanh")),
        attention_linears(width) + plain_mlp(width, inner, ("linear_fc1", "linear_fc2"), bias=True),
        (layer_norm(width, copies=2),),
    )
    rule = pixel_rule(vision, min_pixels=_QWEN3_MIN_PIXELS, max_pixels=_QWEN3_MAX_PIXELS, patch=16)
    positions = vision.integer("num_position_embeddings", default=2304) * width
    hidden, names = vision.integer("out_hidden_size", default=3584), ("linear_fc1", "linear_fc2")
    known = (
        vision.integers("deepstack_visual_indexes") if vision.has("deepstack_visual_indexes") else (8, 16, 24)
    )
    known = known if has_deepstack else ()
    stacked = merger(width, hidden, rule.merge, layer_norm(width * rule.merge**2), names)
    return TowerSpec(
        "qwen3_vl",
        width,
        rule,
        patch_block(vision, rule, width, bias=True, extra_params=positions),
        (BlockGroup(n_layers, block),),
        (BlockGroup(1, merger(width, hidden, rule.merge, layer_norm(width), names)),),
        1 / rule.merge**2,
        has_hook=False,
        deepstack=tuple(number for number in known if number < n_layers),
        stacked=(BlockGroup(len(known), stacked),) if known else (),
        listed=True,
    )


def read_qwen3_vl(fields: ConfigFields) -> ModelSpec:
    """``qwen3_vl``: Qwen3's decoder, to whose first layers the tower adds what it saw in between."""
    text = text_fields(fields)
    attention = attention_of(text, kv_default=32, head_dim_default=128)
    bias = text.flag("attention_bias", False)
    block = llama_block(text, attention, qkv_bias=bias, out_bias=bias)
    block = replace(block, norms=block.norms + head_norms(attention))
    spec = decoder(text, [block] * text.layers("num_hidden_layers"))
    return _seeing(fields, spec)


def read_qwen3_vl_moe(fields: ConfigFields) -> ModelSpec:
    """``qwen3_vl_moe``: the same around the experts of Qwen3-MoE, which PEFT does not reach by names."""
    return unreached_by_peft(_seeing(fields, read_qwen3_moe(text_fields(fields))))


def _seeing(fields: ConfigFields, spec: ModelSpec) -> ModelSpec:
    tower = qwen3_tower(fields.section("vision_config"))
    return replace(spec, architecture=fields.text("model_type", ""), vision=tower)


READERS = {
    "qwen2_vl": read_qwen2_vl,
    "qwen2_5_vl": read_qwen2_5_vl,
    "qwen3_vl": read_qwen3_vl,
    "qwen3_vl_moe": read_qwen3_vl_moe,
}
