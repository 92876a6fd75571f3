"""PaddleOCR-VL: SigLIP's layers over patches of any number, before a decoder like Qwen2-VL's.

Module names, shapes and defaults are those of Transformers 5.23
(``models/paddleocr_vl/{modeling,configuration,image_processing}_paddleocr_vl.py``).
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import attention_of, decoder, llama_block
from planner.catalog.architectures.parts import layer_norm
from planner.catalog.architectures.vision.qwen_vision import merger, pixel_rule, text_fields
from planner.catalog.architectures.vision.square_vision import siglip_layers
from planner.domain.model import BlockGroup, ModelSpec
from planner.domain.vision import TowerSpec

_PADDLE_TOWER = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
    "temporal_patch_size": 1,
    "vision_use_head": False,
}
_ERNIE = {
    "vocab_size": 103_424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
}


def read_paddleocr_vl(fields: ConfigFields) -> ModelSpec:
    """``paddleocr_vl``: SigLIP's layers with turned queries and keys; the projector takes one image at a
    time, after it has laid the patches of a token side by side.

    A head is tied where file or section of the decoder says so, or nothing
    (``PaddleOCRVLConfig.__post_init__``).
    """
    inner = text_fields(fields)
    text = ConfigFields({**_ERNIE, **inner.data}, inner.where)
    bias, attention = text.flag("use_bias", False), replace(attention_of(text), heads_last=True)
    block = llama_block(text, attention, qkv_bias=bias, out_bias=bias, mlp_bias=bias)
    ties = [
        each.flag("tie_word_embeddings", True) for each in (fields, fields.optional_section("text_config"))
    ]
    spec = replace(decoder(text, [block] * text.layers("num_hidden_layers")), tied=any(ties))
    given = fields.optional_section("vision_config")
    vision = ConfigFields({**_PADDLE_TOWER, **given.data, "model_type": "siglip_vision_model"}, given.where)
    width, first, layers, behind = siglip_layers(vision)
    turned = replace(
        layers.block.attention, position="rope", rotary_result="fp32", pieces="image", heads_last=False
    )
    rule = pixel_rule(vision, min_pixels=384**2, max_pixels=1536**2, patch=14)
    last = merger(width, spec.hidden_size, rule.merge, layer_norm(width), ("linear_1", "linear_2"))
    tower = TowerSpec(
        "paddleocr_vl",
        width,
        rule,
        first,
        (replace(layers, block=replace(layers.block, attention=turned)),),
        (BlockGroup(1, last),),
        1 / rule.merge**2,
        has_hook=False,
        behind=behind,
    )
    return replace(spec, architecture="paddleocr_vl", vision=tower)


READERS = {"paddleocr_vl": read_paddleocr_vl}
