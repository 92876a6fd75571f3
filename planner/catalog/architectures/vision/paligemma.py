"""PaliGemma 1 and 2: SigLIP's tower over images of one size, one matrix, and a decoder of Gemma.

Module names, shapes and defaults are those of Transformers 5.23
(``models/paligemma/{modeling,configuration}_paligemma.py``).
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.vision.square_vision import language_model, paligemma_tower
from planner.domain.model import ModelSpec
from planner.errors import NotModelledError

_DECODERS = ("gemma", "gemma2")


def read_paligemma(fields: ConfigFields) -> ModelSpec:
    """``paligemma``: prompts and images see each other both ways, what is to be learned only what is before.

    Raises:
        NotModelledError: another decoder than those of Gemma and Gemma 2.
    """
    spec = language_model(fields, tied_default=True)
    if spec.decoder not in _DECODERS:
        raise NotModelledError(f"{fields.where}: PaliGemma around '{spec.decoder[:40]}' is not modelled")
    projected = fields.integer("projection_dim", default=2048)
    if projected != spec.hidden_size:
        raise fields.fail(f"projection_dim {projected} is not the decoder's hidden_size, {spec.hidden_size}")
    tower = paligemma_tower(fields.section("vision_config"), spec.hidden_size)
    return replace(spec, architecture="paligemma", vision=tower)


READERS = {"paligemma": read_paligemma}
