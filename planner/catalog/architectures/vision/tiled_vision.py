"""Towers over the tiles of an image: InternVL and LLaVA-NeXT (LLaVA 1.6); LLaVA-OneVision, LLaVA-NeXT-Video
and SmolVLM (Idefics3), whose weights alone are known.

Module names, shapes and defaults are those of Transformers 5.23
(``models/{internvl,llava_next,llava_next_video,llava_onevision,smolvlm,idefics3}/``); ``_MAX_TILES`` is
that of ``models/got_ocr2/image_processing_got_ocr2.py``, which InternVL's processor calls.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.parts import layer_norm, plain_mlp, rms, unreached_by_peft
from planner.catalog.architectures.vision.counted_towers import (
    counted_block,
    counted_tower,
    llava_projector,
    side_of,
)
from planner.catalog.architectures.vision.qwen_vision import NO_ATTENTION
from planner.catalog.architectures.vision.square_vision import clip_tower, language_model, siglip_layers
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockGroup, BlockSpec, LinearSpec, MlpSpec, ModelSpec, NormSpec
from planner.domain.vision import ImageRule, TowerSpec

_MAX_TILES = 12
_CANVASES = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
"""Heights and widths, where a file of LLaVA-NeXT lists none."""
_MOST_CANVASES, _LARGEST_SIDE = 1_000, 100_000


def read_internvl(fields: ConfigFields) -> ModelSpec:
    """``internvl`` (the checkpoints with -HF in their names): a tower with scaled branches,
    whose patches four by four become a token.
    """
    spec, vision = language_model(fields, tied_default=True), fields.section("vision_config")
    width = vision.integer("hidden_size", default=1024)
    side, patch = side_of(vision, "image_size", 448), side_of(vision, "patch_size", 14)
    grid, share = side // patch, _share(fields)
    numbers = vision.integer("num_channels", default=3) * patch**2
    conv = LinearSpec("projection", "embedding_projection", numbers, width, "embed", True, "parameter")
    entry = BlockSpec(NO_ATTENTION, MlpSpec(0, False, ""), (conv,), (), extra_params=(grid**2 + 2) * width)
    n_layers = vision.layers("num_hidden_layers", default=24)
    tokens = round((grid * share) ** 2)
    tower = TowerSpec(
        "internvl",
        width,
        ImageRule("tiled", patch, side_pixels=side, tokens=tokens, extra_patches=1, max_tiles=_MAX_TILES),
        entry,
        (BlockGroup(n_layers, _internvl_layer(vision, width)),),
        (BlockGroup(1, _internvl_projector(fields, round(width / share**2), spec.hidden_size)),),
        tokens / (grid**2 + 1),
        listed=True,
    )
    if not _is_modelled(fields, vision, grid * share):
        tower = replace(tower, code="counted")
    if not vision.flag("use_mean_pooling", True):
        tower = replace(tower, behind=(layer_norm(width),))
    return unreached_by_peft(replace(spec, architecture="internvl", vision=tower))


def _is_modelled(fields: ConfigFields, vision: ConfigFields, row: float) -> bool:
    """Whether what the tower computes is what its projector here reads: the patches of the last layer,
    without dropout.
    """
    drops = ("hidden_dropout_prob", "attention_dropout", "projection_dropout")
    plain = fields.data.get("vision_feature_layer", -1) == -1 and row == round(row)
    plain = plain and fields.text("vision_feature_select_strategy", "default") == "default"
    plain = plain and vision.flag("use_absolute_position_embeddings", True)
    return plain and not vision.flag("use_mask_token", False) and not any(map(vision.data.get, drops))


def _internvl_layer(vision: ConfigFields, width: int) -> BlockSpec:
    heads = vision.integer("num_attention_heads", default=16)
    inner = vision.integer("intermediate_size", default=4096)
    if width % heads:
        raise vision.fail(f"hidden_size {width} is not divisible by num_attention_heads {heads}")
    bias, is_rms = vision.flag("attention_bias", False), vision.text("norm_type", "layer_norm") == "rms_norm"
    linears = tuple(LinearSpec(f"{name}_proj", "attention", width, width, "attn_in", bias) for name in "qkv")
    linears += (LinearSpec("projection_layer", "attention", width, width, "attn_out", True),)
    norms: tuple[NormSpec, ...] = (rms(width, copies=2) if is_rms else layer_norm(width, copies=2),)
    if vision.flag("use_qk_norm", False):
        norms += (replace(rms(width), on="heads"), replace(rms(width), on="heads"))
    return BlockSpec(
        AttentionSpec(heads, heads, width // heads, width // heads, position="none", heads_last=True),
        MlpSpec(inner, gated=False, activation=vision.text("hidden_act", "gelu")),
        linears + plain_mlp(width, inner, ("fc1", "fc2"), bias=True),
        norms,
        extra_params=2 * width,
        weighs_branches=True,
    )


def _internvl_projector(fields: ConfigFields, merged: int, hidden: int) -> BlockSpec:
    linears = (
        LinearSpec("linear_1", "mlp", merged, hidden, "mlp_in", bias=True),
        LinearSpec("linear_2", "mlp", hidden, hidden, "mlp_mid", bias=True),
    )
    activation = fields.text("projector_hidden_act", "gelu")
    return BlockSpec(NO_ATTENTION, MlpSpec(hidden, False, activation), linears, (layer_norm(merged),))


def _share(fields: ConfigFields) -> float:
    share = fields.data.get("downsample_ratio", 0.5)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0.01 <= share <= 1:
        raise fields.fail("field 'downsample_ratio' must be a number from 0.01 to 1")
    return float(share)


def read_llava_next(fields: ConfigFields) -> ModelSpec:
    """``llava_next`` (LLaVA 1.6), ``llava_next_video`` and ``llava_onevision``: LLaVA's tower or SigLIP's
    over parts of an image, and a vector for the end of a row.
    """
    kind = fields.text("model_type", "")
    spec, vision = language_model(fields, tied_default=False), fields.section("vision_config")
    hidden, seeing = spec.hidden_size, vision.text("model_type", "")
    if seeing == "siglip_vision_model":
        width, entry, layers, behind = siglip_layers(vision)
        projector = llava_projector(fields, width, hidden)
        tower = counted_tower(width, entry, (layers,), (projector,), listed=False)
        tower = replace(tower, behind=behind)
    elif kind == "llava_next":
        tower = _next_tower(fields, vision, hidden)
    else:
        tower = replace(clip_tower(vision, hidden, n_unread=0, keeps_class=False), code="counted")
    projector = tower.projectors[0].block
    projector = replace(projector, extra_params=projector.extra_params + hidden)
    return replace(spec, architecture=kind, vision=replace(tower, projectors=(BlockGroup(1, projector),)))


def _next_tower(fields: ConfigFields, vision: ConfigFields, hidden: int) -> TowerSpec:
    """CLIP's tower over a whole image and the squares of its canvas."""
    layer, n_layers = fields.data.get("vision_feature_layer", -2), vision.layers("num_hidden_layers")
    is_plain = isinstance(layer, int) and not isinstance(layer, bool) and -n_layers <= layer < 0
    n_unread = -1 - layer if is_plain else 0
    tower = clip_tower(vision, hidden, n_unread=n_unread, keeps_class=False)
    canvases, side = _canvases(fields), tower.rule.side_pixels
    if (
        not is_plain
        or fields.text("vision_feature_select_strategy", "default") != "default"
        or fields.text("projector_hidden_act", "gelu") != "gelu"
        or not fields.flag("multimodal_projector_bias", True)
        or any(pixels % side for canvas in canvases for pixels in canvas)
    ):
        return replace(tower, code="counted")
    return replace(tower, code="llava_next", rule=replace(tower.rule, kind="anyres", canvases=canvases))


_SMOLVLM_TOWER = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "patch_size": 32,
}
"""Where ``SmolVLMVisionConfig`` and ``Idefics3VisionConfig`` differ from SigLIP's class."""


def read_smolvlm(fields: ConfigFields) -> ModelSpec:
    """``smolvlm`` and ``idefics3``: SigLIP's layers, of whose patches ``scale_factor`` squared become a token
    by one matrix.
    """
    spec, vision = language_model(fields, tied_default=False), fields.optional_section("vision_config")
    tower = {"model_type": "siglip_vision_model", "vision_use_head": False}
    given = ConfigFields({**_SMOLVLM_TOWER, **vision.data, **tower}, vision.where)
    width, entry, layers, behind = siglip_layers(given)
    merged = width * fields.integer("scale_factor", default=2) ** 2
    projector = counted_block([("proj", merged, spec.hidden_size, False)])
    counted = counted_tower(width, entry, (layers,), (projector,), listed=False)
    kind = fields.text("model_type", "")
    return replace(spec, architecture=kind, vision=replace(counted, behind=behind))


def _canvases(fields: ConfigFields) -> tuple[tuple[int, int], ...]:
    """Heights and widths of the canvases that an image is fitted into."""
    listed = fields.data.get("image_grid_pinpoints")
    if listed is None:
        return _CANVASES
    is_list = isinstance(listed, list) and 0 < len(listed) <= _MOST_CANVASES
    if not is_list or not all(map(_is_size, listed)):
        raise fields.fail("field 'image_grid_pinpoints' must be a list of heights and widths in pixels")
    return tuple((int(height), int(width)) for height, width in listed)


def _is_size(canvas: object) -> bool:
    if not isinstance(canvas, list) or len(canvas) != len(_CANVASES[0]):
        return False
    return all(isinstance(side, int) and 0 < side <= _LARGEST_SIDE for side in canvas)


READERS = {
    "internvl": read_internvl,
    "llava_next": read_llava_next,
    "llava_next_video": read_llava_next,
    "llava_onevision": read_llava_next,
    "smolvlm": read_smolvlm,
    "idefics3": read_smolvlm,
}
