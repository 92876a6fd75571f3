"""Models that see, of which text alone is modelled: Aya Vision, Idefics2, LFM2-VL.

Their towers are SigLIP's, or nearly so, and are counted.
Module names, shapes and defaults are those of Transformers 5.23
(``models/{aya_vision,idefics2,lfm2_vl,siglip2}/``).
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.parts import layer_norm, rms
from planner.catalog.architectures.vision.counted_towers import Matrix, counted_block, counted_tower
from planner.catalog.architectures.vision.square_vision import language_model, siglip_layers
from planner.domain.model import BlockGroup, BlockSpec, ModelSpec
from planner.domain.vision import TowerSpec

_DEFAULTS = {
    "cohere2": {"vocab_size": 256_000},
    "lfm2": {"vocab_size": 65_536},
    "mistral": {
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}
"""What published files leave out of the decoder: defaults of its configuration class."""


def _decoder(fields: ConfigFields, kind: str, *, tied_default: bool) -> ModelSpec:
    """The decoder, of architecture ``kind`` where the file does not say another one."""
    text = {"model_type": kind, **fields.section("text_config").data}
    defaults = _DEFAULTS.get(str(text["model_type"]), {})
    data = {**fields.data, "text_config": {**defaults, **text}}
    spec = language_model(ConfigFields(data, fields.where), tied_default=tied_default)
    return replace(spec, architecture=fields.text("model_type", ""))


def _siglip(vision: ConfigFields, **defaults: int | bool) -> ConfigFields:
    """The fields of a tower whose layers are SigLIP's, as the reader of those takes them."""
    data = {**defaults, **vision.data, "model_type": "siglip_vision_model"}
    return ConfigFields(data, vision.where)


def _tower(vision: ConfigFields, projectors: list[BlockSpec], entry: BlockSpec | None = None) -> TowerSpec:
    width, first, layers, behind = siglip_layers(vision)
    counted = counted_tower(width, entry or first, (layers,), projectors, listed=False)
    return replace(counted, behind=behind)


def read_aya_vision(fields: ConfigFields) -> ModelSpec:
    """``aya_vision``: a norm over patches that were joined, and a gated part of two matrices."""
    spec, vision = _decoder(fields, "cohere2", tied_default=True), fields.section("vision_config")
    joined = vision.integer("hidden_size", default=1152) * fields.integer("downsample_factor", default=2) ** 2
    inner, hidden = fields.integer("alignment_intermediate_size", default=36864), spec.hidden_size
    matrices = [("linear_1", joined, inner, True), ("linear_2", inner // 2, hidden, True)]
    tower = _tower(_siglip(vision), [counted_block(matrices, (layer_norm(joined),))])
    return replace(spec, vision=tower)


def read_idefics2(fields: ConfigFields) -> ModelSpec:
    """``idefics2``: a gated part to the width of the decoder, and a resampler of some layers."""
    spec, vision = _decoder(fields, "mistral", tied_default=False), fields.section("vision_config")
    given = _siglip(vision, image_size=224, patch_size=32, num_hidden_layers=12, vision_use_head=False)
    perceiver, hidden = fields.optional_section("perceiver_config"), spec.hidden_size
    inner = fields.section("text_config").integer("intermediate_size", default=14336)
    first = counted_block(_gated(given.integer("hidden_size", default=768), inner, hidden))
    depth = perceiver.layers("resampler_depth", default=3)
    latents = perceiver.integer("resampler_n_latents", default=64) * hidden
    last = counted_block([], (rms(hidden),), latents)
    tower = _tower(given, [first, last])
    layers = BlockGroup(depth, _resampler_layer(perceiver, hidden))
    tower = replace(tower, projectors=(tower.projectors[0], layers, tower.projectors[1]))
    return replace(spec, vision=tower)


def _gated(n_in: int, inner: int, n_out: int) -> list[Matrix]:
    return [
        ("gate_proj", n_in, inner, False),
        ("up_proj", n_in, inner, False),
        ("down_proj", inner, n_out, False),
    ]


def _resampler_layer(perceiver: ConfigFields, hidden: int) -> BlockSpec:
    size = perceiver.integer("resampler_head_dim", default=96)
    heads = perceiver.integer("resampler_n_heads", default=16)
    keys = perceiver.integer("num_key_value_heads", default=4)
    matrices: list[Matrix] = [
        ("q_proj", hidden, heads * size, False),
        ("k_proj", hidden, keys * size, False),
        ("v_proj", hidden, keys * size, False),
        ("o_proj", heads * size, hidden, False),
    ]
    return counted_block([*matrices, *_gated(hidden, 4 * hidden, hidden)], (rms(hidden, copies=3),))


def read_lfm2_vl(fields: ConfigFields) -> ModelSpec:
    """``lfm2_vl``: SigLIP 2, whose patches one matrix reads."""
    spec, vision = _decoder(fields, "lfm2", tied_default=True), fields.section("vision_config")
    patch, places = vision.integer("patch_size", default=16), vision.integer("num_patches", default=256)
    given = _siglip(vision, hidden_size=768, num_hidden_layers=12, patch_size=16)
    given = ConfigFields({**given.data, "image_size": isqrt(places) * patch}, given.where)
    width, hidden = given.integer("hidden_size"), spec.hidden_size
    numbers = vision.integer("num_channels", default=3) * patch**2
    entry = counted_block([("patch_embedding", numbers, width, True)], extra=places * width)
    joined = width * fields.integer("downsample_factor", default=2) ** 2
    inner, bias = fields.integer("projector_hidden_size", default=2560), fields.flag("projector_bias", True)
    norms = (layer_norm(joined),) if fields.flag("projector_use_layernorm", True) else ()
    matrices = [("linear_1", joined, inner, bias), ("linear_2", inner, hidden, bias)]
    tower = _tower(given, [counted_block(matrices, norms)], entry)
    return replace(spec, vision=tower)


READERS = {"aya_vision": read_aya_vision, "idefics2": read_idefics2, "lfm2_vl": read_lfm2_vl}
