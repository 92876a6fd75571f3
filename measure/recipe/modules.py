"""A model's configuration and where its decoder layers are, as Transformers has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from planner.catalog.hf_config import config_fields as read_fields
from planner.catalog.hub import fetch_config
from planner.catalog.models import model_entry
from planner.domain.model import ModelSpec
from planner.domain.vision import FrozenPart
from planner.errors import NotModelledError, UnknownNameError

# Names in Transformers 5.23.
_LANGUAGE = ("language_model", "text_model", "lm_head")
_PROJECTORS = (
    *("multi_modal_projector", "embed_vision", "vision_projection"),
    *(".merger", ".connector", ".projector", ".aligner"),
)


def config_fields(model: ModelSpec) -> dict[str, Any]:
    """The fields of the ``config.json`` that ``model`` was read from."""
    if Path(model.source).is_file():
        return dict(read_fields(Path(model.source)))
    try:
        entry = model_entry(model.id)
    except UnknownNameError:
        return dict(fetch_config(model.hub_id))
    return entry.config_fields()


def find_layer_list(model: nn.Module, config: Any) -> str:
    """Name of the list of decoder layers.

    Raises:
        NotModelledError: no such list, or several.
    """
    text = config.get_text_config()
    # A tower may have as many layers, below a configuration of another class.
    of_text = [n for n, m in model.named_modules() if isinstance(getattr(m, "config", None), type(text))]
    lists: list[str] = [
        n
        for n, m in model.named_modules()
        if isinstance(m, nn.ModuleList)
        and len(m) == text.num_hidden_layers
        and any(not each or n.startswith(f"{each}.") for each in of_text)
    ]
    outermost = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(outermost) != 1:
        found = f"{len(outermost)} lists of decoder layers found"
        raise NotModelledError(f"architecture '{config.model_type}' cannot be traced: {found}")
    return outermost[0]


def part_of(name: str) -> FrozenPart:
    """The part of a vision-language model that a parameter or module of this full name belongs to."""
    if any(word in name for word in _LANGUAGE):
        return "language_model"
    return "projector" if any(word in name for word in _PROJECTORS) else "vision_tower"
