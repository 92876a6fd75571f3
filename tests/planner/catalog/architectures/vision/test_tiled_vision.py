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


@pytest.mark.parametrize(("name", "merged"), [("smolvlm-256m", 768 * 16), ("smolvlm2-2.2b", 1152 * 9)])
def test_smolvlm_joins_patches_by_one_matrix(name: str, merged: int) -> None:
    """As many as the square of the factor; the tower is counted and reads no images."""
    spec = spec_of(model_entry(name))
    assert spec.vision is not None
    (matrix,) = spec.vision.projectors[0].block.linears
    assert (matrix.in_features, matrix.out_features, matrix.bias) == (merged, spec.hidden_size, False)
    assert (spec.vision.code, spec.decoder) == ("counted", "llama")
