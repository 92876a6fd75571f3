"""Mistral 3 (Mistral Small 3.1 and later, Ministral 3) and LightOnOCR: Pixtral's tower, a projector that
merges patches, and a decoder of another architecture.

Module names, shapes and defaults are those of Transformers 5.23
(``models/{mistral3,pixtral,lighton_ocr}/modeling_*.py``, ``configuration_*.py``).
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.parts import gated_mlp, rms
from planner.catalog.architectures.vision.counted_towers import llava_projector
from planner.catalog.architectures.vision.qwen_vision import NO_ATTENTION
from planner.catalog.architectures.vision.square_vision import language_model
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockGroup, BlockSpec, LinearSpec, MlpSpec, ModelSpec
from planner.domain.vision import ImageRule, TowerCode, TowerSpec
from planner.errors import NotModelledError


def _layer(vision: ConfigFields, width: int) -> BlockSpec:
    """A layer of Llama's manner whose attention sees all patches of an image."""
    heads = vision.integer("num_attention_heads", default=16)
    inner = vision.integer("intermediate_size", default=4096)
    if width % heads:
        raise vision.fail(f"hidden_size {width} is not divisible by num_attention_heads {heads}")
    matrices = tuple(LinearSpec(f"{name}_proj", "attention", width, width, "attn_in") for name in "qkv")
    matrices += (LinearSpec("o_proj", "attention", width, width, "attn_out"),)
    return BlockSpec(
        AttentionSpec(heads, heads, width // heads, width // heads, heads_last=True),
        MlpSpec(inner, gated=True, activation=vision.text("hidden_act", "gelu")),
        matrices + gated_mlp(width, inner),
        (rms(width, copies=2),),
    )


def _projector(fields: ConfigFields, width: int, hidden: int, merged: int) -> BlockSpec:
    """A norm, one patch of ``merged`` ones, and two matrices."""
    bias = fields.flag("multimodal_projector_bias", False)
    linears = (
        LinearSpec("merging_layer", "mlp", merged * width, width, "mlp_in"),
        LinearSpec("linear_1", "mlp", width, hidden, "mlp_in", bias=bias),
        LinearSpec("linear_2", "mlp", hidden, hidden, "mlp_mid", bias=bias),
    )
    activation = fields.text("projector_hidden_act", "gelu")
    return BlockSpec(NO_ATTENTION, MlpSpec(hidden, False, activation), linears, (rms(width),))


def read_pixtral(fields: ConfigFields, spec: ModelSpec) -> ModelSpec:
    """Pixtral 12B, which is LLaVA with another tower; its projector reads all that the last layer returns."""
    width, hidden = fields.section("vision_config").integer("hidden_size", default=1024), spec.hidden_size
    is_modelled = fields.data.get("vision_feature_layer", -2) == -1
    is_modelled = is_modelled and fields.text("vision_feature_select_strategy", "default") == "full"
    projector = llava_projector(fields, width, hidden)
    activation = fields.text("projector_hidden_act", "gelu")
    projector = replace(projector, mlp=MlpSpec(hidden, False, activation))
    tower = pixtral_tower(fields, "pixtral" if is_modelled else "counted", projector, 1)
    return replace(spec, architecture="llava", vision=tower)


def pixtral_tower(fields: ConfigFields, code: TowerCode, projector: BlockSpec, merge: int) -> TowerSpec:
    """Pixtral's tower, of which ``merge`` patches make the side of a token.

    The longest side of an image is taken to be the tower's own, which its positions reach.
    """
    vision = fields.section("vision_config")
    kind = vision.text("model_type", "pixtral")
    if kind != "pixtral":
        raise NotModelledError(
            f"{vision.where}: a vision tower of architecture '{kind[:40]}' is not modelled, pixtral is"
        )
    width, patch = vision.integer("hidden_size", default=1024), vision.integer("patch_size", default=16)
    numbers = vision.integer("num_channels", default=3) * patch**2
    conv = LinearSpec("patch_conv", "embedding_projection", numbers, width, "embed", kind="parameter")
    entry = BlockSpec(NO_ATTENTION, MlpSpec(0, False, ""), (conv,), (rms(width),))
    side = vision.integer("image_size", default=1024)
    return TowerSpec(
        "counted" if vision.data.get("attention_dropout") else code,
        width,
        ImageRule("bounded", patch, merge=merge, side_pixels=side),
        entry,
        (BlockGroup(vision.layers("num_hidden_layers"), _layer(vision, width)),),
        (BlockGroup(1, projector),),
        1 / merge**2,
        listed=True,
    )


def read_mistral3(fields: ConfigFields) -> ModelSpec:
    """``mistral3``: the projector reads what the last layer of the tower returns.

    Raises:
        NotModelledError: one that reads another layer, or several.
    """
    spec, layer = language_model(fields, tied_default=True), fields.data.get("vision_feature_layer", -1)
    if layer != -1 or isinstance(layer, bool):
        raise NotModelledError(f"{fields.where}: vision_feature_layer other than -1 is not modelled")
    merge = fields.integer("spatial_merge_size", default=2)
    width = fields.section("vision_config").integer("hidden_size", default=1024)
    projector = _projector(fields, width, spec.hidden_size, merge**2)
    return replace(spec, architecture="mistral3", vision=pixtral_tower(fields, "mistral3", projector, merge))


_QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
}
_PIXTRAL = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "hidden_act": "silu"}


def read_lighton_ocr(fields: ConfigFields) -> ModelSpec:
    """``lighton_ocr``: Mistral 3's code around a Qwen3; rows of tokens have no ends."""
    text, vision = (fields.optional_section(f"{part}_config").data for part in ("text", "vision"))
    given = {
        **fields.data,
        "text_config": {**_QWEN3, **text},
        "vision_config": {**_PIXTRAL, "image_size": 1540, "patch_size": 14, **vision},
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
    }
    spec = read_mistral3(ConfigFields(given, fields.where))
    tower = spec.vision and replace(spec.vision, rule=replace(spec.vision.rule, ends_rows=False))
    return replace(spec, architecture="lighton_ocr", vision=tower)


READERS = {"mistral3": read_mistral3, "lighton_ocr": read_lighton_ocr}
