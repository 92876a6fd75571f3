"""GLM-4.1V, 4.5V and 4.6V: a tower that is loaded and counted, before the decoders of GLM-4 and GLM-4.5.

Module names, shapes and defaults are those of Transformers 5.23
(``models/{glm4v,glm46v,glm4v_moe}/{modeling,configuration}_*.py``).
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.parts import layer_norm, rms
from planner.catalog.architectures.vision.counted_towers import counted_block, counted_tower, side_of
from planner.catalog.architectures.vision.square_vision import language_model
from planner.domain.model import BlockGroup, BlockSpec, LinearSpec, ModelSpec
from planner.domain.vision import TowerSpec

_DECODERS = {"glm4v": "glm4v_text", "glm46v": "glm4v_text", "glm4v_moe": "glm4v_moe_text"}


def read_glm_vision(fields: ConfigFields) -> ModelSpec:
    """``glm4v``, ``glm46v`` and ``glm4v_moe``; GLM-4.6V is any of the two decoders."""
    architecture = fields.text("model_type", "glm4v")
    section = fields.section("text_config")
    text = {"model_type": _DECODERS[architecture], **section.data}
    spec = language_model(ConfigFields({**fields.data, "text_config": text}, fields.where))
    tower = _tower(fields.section("vision_config"))
    return replace(spec, architecture=architecture, vision=tower)


def _tower(vision: ConfigFields) -> TowerSpec:
    width, out = vision.integer("hidden_size", default=1536), vision.integer("out_hidden_size", default=4096)
    side, patch = (
        side_of(vision, name, default) for name, default in (("image_size", 336), ("patch_size", 14))
    )
    frames = side_of(vision, "temporal_patch_size", 2)
    n_layers = vision.layers("depth") if vision.has("depth") else 24
    numbers = vision.integer("in_channels", default=3) * frames * patch**2
    conv = LinearSpec("proj", "embedding_projection", numbers, width, "embed", bias=True, kind="parameter")
    places = (side // patch) ** 2 * width
    entry = replace(counted_block([], (rms(width),), places), linears=(conv,))
    layer = counted_block(
        [
            ("qkv", width, 3 * width, vision.flag("attention_bias", False)),
            ("proj", width, width, False),
            ("gate_proj", width, out, False),
            ("up_proj", width, out, False),
            ("down_proj", out, width, False),
        ],
        (rms(width, copies=2),),
    )
    return counted_tower(width, entry, [BlockGroup(n_layers, layer)], [_merger(vision, width)], listed=True)


def _merger(vision: ConfigFields, width: int) -> BlockSpec:
    """A norm, a convolution that makes one token of several patches, a matrix, and a gated part."""
    out, inner = (
        vision.integer("out_hidden_size", default=4096),
        vision.integer("intermediate_size", default=13_696),
    )
    convolved = vision.integer("spatial_merge_size", default=2) ** 2 * width * out + out
    matrices = [
        ("proj", out, out, False),
        ("gate_proj", out, inner, False),
        ("up_proj", out, inner, False),
        ("down_proj", inner, out, False),
    ]
    return counted_block(matrices, (rms(width), layer_norm(out)), convolved)


READERS = dict.fromkeys(_DECODERS, read_glm_vision)
