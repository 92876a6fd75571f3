"""What the readers of CLIP's and SigLIP's towers say: tokens of an image, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.domain.model import ModelSpec
from planner.domain.vision import TowerSpec
from planner.errors import InputFileError, NotModelledError

W, OUT = 64, 48
TEXT = {
    "hidden_size": OUT, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96,
}  # fmt: skip
SIZES = {"hidden_size": W, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 3}
CLIP = {"model_type": "clip_vision_model", **SIZES, "image_size": 56, "patch_size": 14}
SIGLIP = {
    "model_type": "siglip_vision_model",
    **SIZES,
    "image_size": 56,
    "patch_size": 14,
    "vision_use_head": False,
}


def model(kind: str, vision: dict[str, Any], **more: Any) -> ModelSpec:
    """A small model that sees."""
    decoder = {"gemma3": "gemma3_text", "paligemma": "gemma"}.get(kind, "llama")
    text = {"model_type": decoder, **TEXT, "head_dim": 16}
    return model_from_config({"model_type": kind, "text_config": text, "vision_config": vision, **more}, "x")


def tower(kind: str, vision: dict[str, Any], **more: Any) -> TowerSpec:
    """Its tower."""
    found = model(kind, vision, **more).vision
    assert found is not None
    return found


@pytest.mark.parametrize(("kept", "tokens"), [("default", 16), ("full", 17)])
def test_the_class_token_is_kept_or_not(kept: str, tokens: int) -> None:
    """Of LLaVA's strategies of choosing features."""
    assert tower("llava", CLIP, vision_feature_select_strategy=kept).rule.tokens == tokens


@pytest.mark.parametrize("tokens", [1, 4, 16])
def test_patches_are_averaged_in_squares(tokens: int) -> None:
    """4 x 4 patches become a square whose side divides theirs."""
    spec = tower("gemma3", SIGLIP, mm_tokens_per_image=tokens)
    assert (spec.rule.tokens, spec.token_share) == (tokens, tokens / 16)


@pytest.mark.parametrize("tokens", [2, 9, 64])
def test_other_numbers_of_tokens_are_refused(tokens: int) -> None:
    """No square, or one that does not divide."""
    with pytest.raises(InputFileError, match=f"are not averaged to mm_tokens_per_image {tokens}"):
        tower("gemma3", SIGLIP, mm_tokens_per_image=tokens)


@pytest.mark.parametrize(
    ("kind", "vision", "sentence"),
    [
        ("gemma3", {**SIGLIP, "vision_use_head": True}, "with a head of its own"),
        ("gemma3", CLIP, "architecture 'clip_vision_model'"),
        ("llava", {**CLIP, "model_type": "dinov2"}, "architecture 'dinov2'"),
    ],
)
def test_other_towers_have_no_verdict(kind: str, vision: dict[str, Any], sentence: str) -> None:
    """By their name."""
    with pytest.raises(NotModelledError, match=sentence):
        tower(kind, vision)


def test_layers_behind_the_one_that_is_read() -> None:
    """LLaVA reads the last but one; a tower of one layer has none left."""
    assert tower("llava", CLIP).n_unread == 1
    with pytest.raises(InputFileError, match="has none that LLaVA reads"):
        tower("llava", CLIP | {"num_hidden_layers": 1})
    with pytest.raises(InputFileError, match="not divisible by num_attention_heads 5"):
        tower("llava", CLIP | {"num_attention_heads": 5})


def test_a_decoder_that_nobody_reads_has_no_verdict() -> None:
    """LLaVA's files leave Llama's sizes out."""
    file = {"model_type": "llava", "vision_config": CLIP}
    with pytest.raises(NotModelledError, match="architecture 'nobody'"):
        model_from_config({**file, "text_config": {"model_type": "nobody"}}, "x")
    bare = model_from_config({**file, "text_config": {"vocab_size": 32064}}, "x")
    assert (bare.hidden_size, bare.n_layers, bare.vocab_size) == (4096, 32, 32064)


def test_paligemma_has_a_token_for_each_patch() -> None:
    """One matrix leads from the tower to a decoder of Gemma, whose width ``projection_dim`` must be."""
    spec = model("paligemma", SIGLIP, projection_dim=OUT)
    assert spec.vision is not None
    assert (spec.vision.rule.tokens, spec.vision.token_share) == (16, 1.0)
    assert spec.vision.projector_param_count == W * OUT + OUT
    assert spec.tied
    with pytest.raises(InputFileError, match=f"projection_dim 64 is not the decoder's hidden_size, {OUT}"):
        model("paligemma", SIGLIP, projection_dim=64)


def test_paligemma_around_another_decoder_is_refused() -> None:
    """Its masks were read around Gemma and Gemma 2 alone."""
    text = {"model_type": "llama", **TEXT}
    config = {"model_type": "paligemma", "text_config": text, "vision_config": SIGLIP, "projection_dim": OUT}
    with pytest.raises(NotModelledError, match="PaliGemma around 'llama' is not modelled"):
        model_from_config(config, "x")
