"""Towers that cut images into tiles: what is refused, and the decoder behind one."""

from __future__ import annotations

import pytest

from planner.catalog.hf_config import model_from_config
from planner.catalog.models import model_entry, spec_of
from planner.errors import InputFileError

_SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
}


@pytest.mark.parametrize(
    ("name", "sides"), [("image_size", [448, 224]), ("image_size", []), ("downsample_ratio", 0)]
)
def test_internvl_refuses_what_it_cannot_count(name: str, sides: object) -> None:
    """Images with two sides; a share of no patches."""
    vision = {"model_type": "internvl_vision"} | ({name: sides} if name == "image_size" else {})
    text = {**_SMALL, "model_type": "qwen2"}
    outer = {name: sides} if name != "image_size" else {}
    with pytest.raises(InputFileError):
        model_from_config(
            {"model_type": "internvl", "text_config": text, "vision_config": vision, **outer}, "x"
        )


def test_nulls_inside_a_section_are_nulls() -> None:
    """LLaVA 1.6 says that its decoder has no window, which the decoder's class has else."""
    spec = spec_of(model_entry("llava-1.6-mistral-7b"))
    assert spec.windows == ()
