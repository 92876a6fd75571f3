"""LLaVA 1.5: a CLIP tower over images of one size, or Pixtral's, a projector of two matrices,
and a decoder of another architecture.

Module names, shapes and defaults are those of Transformers 5.23 (``models/llava/modeling_llava.py``,
``configuration_llava.py``).
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.vision.pixtral_vision import read_pixtral
from planner.catalog.architectures.vision.square_vision import clip_tower, language_model
from planner.domain.model import ModelSpec
from planner.errors import NotModelledError


def read_llava(fields: ConfigFields) -> ModelSpec:
    """``llava``: LLaVA 1.5, whose projector reads what enters the last layer but one from behind,
    without the class token; and Pixtral.
    """
    spec, layer = language_model(fields), fields.data.get("vision_feature_layer", -2)
    if fields.section("vision_config").text("model_type", "") == "pixtral":
        return read_pixtral(fields, spec)
    if not isinstance(layer, int) or isinstance(layer, bool) or not -100 < layer < 0:
        raise NotModelledError(
            f"{fields.where}: vision_feature_layer other than a number from behind is not modelled"
        )
    keeps_class = fields.text("vision_feature_select_strategy", "default") == "full"
    if (
        not fields.flag("multimodal_projector_bias", True)
        or fields.text("projector_hidden_act", "gelu") != "gelu"
    ):
        raise NotModelledError(f"{fields.where}: this projector is not modelled")
    tower = clip_tower(
        fields.section("vision_config"), spec.hidden_size, n_unread=-1 - layer, keeps_class=keeps_class
    )
    return replace(spec, architecture="llava", vision=tower)


READERS = {"llava": read_llava}
