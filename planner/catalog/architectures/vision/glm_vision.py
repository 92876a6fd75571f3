"""GLM-4.1V, 4.5V, 4.6V and GLM-OCR: a tower over patches of any number, before the decoders of GLM-4 and
GLM-4.5.

Module names, shapes and defaults are those of Transformers 5.23
(``models/{glm4v,glm46v,glm4v_moe,glm_ocr}/{modeling,configuration}_*.py``).
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.parts import gated_mlp, layer_norm, rms
from planner.catalog.architectures.vision.counted_towers import side_of
from planner.catalog.architectures.vision.qwen_vision import (
    NO_ATTENTION,
    attention_linears,
    patch_block,
    tower_attention,
)
from planner.catalog.architectures.vision.square_vision import language_model
from planner.domain.model import BlockGroup, BlockSpec, LinearSpec, MlpSpec, ModelSpec
from planner.domain.vision import ImageRule, TowerSpec

_MIN_PIXELS, _MAX_PIXELS = 112 * 112 // 2, 28 * 28 * 15_000 // 2
"""As in transformers 5.23 models/{glm4v,glm46v}/image_processing_*.py ``size``: limits of two frames,
both of which an image is.
"""
_MAX_PIXELS_OF_OCR = 28 * 28 * 12_288 // 2
"""``longest_edge`` in preprocessor_config.json of GLM-OCR, of two frames, too."""
_DECODERS = {
    "glm4v": "glm4v_text",
    "glm46v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "glm_ocr": "glm_ocr_text",
}


def read_glm_vision(fields: ConfigFields) -> ModelSpec:
    """``glm4v``, ``glm46v``, ``glm4v_moe`` and ``glm_ocr``; GLM-4.6V is any of the first two decoders."""
    architecture = fields.text("model_type", "glm4v")
    section = fields.section("text_config")
    text = {"model_type": _DECODERS[architecture], **section.data}
    spec = language_model(ConfigFields({**fields.data, "text_config": text}, fields.where))
    vision = fields.section("vision_config")
    tower = _ocr_tower(vision) if architecture == "glm_ocr" else _tower(vision)
    omits = "the multi-token-prediction layer, which Transformers does not build"
    is_left_out = section.has("num_nextn_predict_layers")
    return replace(spec, architecture=architecture, vision=tower, omits=omits if is_left_out else spec.omits)


def _tower(vision: ConfigFields) -> TowerSpec:
    width, heads = vision.integer("hidden_size", default=1536), vision.integer("num_heads", default=12)
    inner = vision.integer("intermediate_size", default=13_696)
    out = vision.integer("out_hidden_size", default=4096)
    side = side_of(vision, "image_size", 336)
    rule = ImageRule(
        "resized",
        patch_pixels=side_of(vision, "patch_size", 14),
        merge=vision.integer("spatial_merge_size", default=2),
        frames=side_of(vision, "temporal_patch_size", 2),
        min_pixels=_MIN_PIXELS,
        max_pixels=_MAX_PIXELS,
    )
    places = (side // rule.patch_pixels) ** 2 * width
    entry = replace(patch_block(vision, rule, width, bias=True, extra_params=places), norms=(rms(width),))
    qkv, proj = attention_linears(width)
    layer = BlockSpec(
        tower_attention(vision, width, heads),
        MlpSpec(out, gated=True, activation=vision.text("hidden_act", "silu")),
        (
            replace(qkv, bias=vision.flag("attention_bias", False)),
            replace(proj, bias=False),
            *gated_mlp(width, out),
        ),
        (rms(width, copies=2),),
    )
    return TowerSpec(
        "glm4v",
        width,
        rule,
        entry,
        (BlockGroup(vision.layers("depth", default=24), layer),),
        (BlockGroup(1, _merger(vision, rule.merge**2 * width, out, inner)),),
        1 / rule.merge**2,
        has_hook=False,
        behind=(rms(width),),
        listed=True,
    )


def _ocr_tower(vision: ConfigFields) -> TowerSpec:
    """That of GLM-OCR: no table of places, norms over heads, and biases where the file denies none."""
    defaults = {"hidden_size": 1024, "num_heads": 16, "out_hidden_size": 1536, "intermediate_size": 4096}
    given = {**defaults, "attention_bias": True, **vision.data}
    tower = _tower(ConfigFields(given, vision.where))
    bias, inner = vision.flag("attention_bias", True), int(given["intermediate_size"])
    [group] = tower.groups
    block = group.block
    qkv, proj, *_ = block.linears
    heads = replace(rms(block.attention.head_dim), on="heads", rows_per_token=block.attention.n_heads)
    block = replace(
        block,
        mlp=replace(block.mlp, width=inner),
        linears=(qkv, replace(proj, bias=bias), *gated_mlp(tower.width, inner, bias=bias)),
        norms=(*block.norms, heads, heads),
    )
    out = vision.integer("out_hidden_size", default=1536)
    inside = tower.rule.merge**2 * tower.width
    merged = _merger(vision, inside, out, out * vision.integer("in_channels", default=3))
    return replace(
        tower,
        rule=replace(tower.rule, max_pixels=_MAX_PIXELS_OF_OCR),
        entry=replace(tower.entry, norms=(), extra_params=0),
        groups=(replace(group, block=block),),
        projectors=(BlockGroup(1, merged),),
    )


def _merger(vision: ConfigFields, inside: int, out: int, inner: int) -> BlockSpec:
    """A convolution that makes one token of several patches, a matrix, a norm, and a gated part."""
    conv = LinearSpec("downsample", "embedding_projection", inside, out, "embed", bias=True, kind="parameter")
    first = LinearSpec("proj", "mlp", out, out, "mlp_in")
    mlp = MlpSpec(inner, gated=True, activation=vision.text("hidden_act", "silu"))
    return BlockSpec(NO_ATTENTION, mlp, (conv, first, *gated_mlp(out, inner)), (layer_norm(out),))


READERS = dict.fromkeys(_DECODERS, read_glm_vision)
