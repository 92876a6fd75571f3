"""Images of a sample: what the processor makes of a size, and what is refused."""

from __future__ import annotations

from functools import partial

import pytest

from planner.domain.vision import ImageRule
from planner.errors import UsageError
from planner.intake.images import parse_size, resized
from tests.jobs import resolved

QWEN = ImageRule("resized", patch_pixels=14, merge=2, frames=2, min_pixels=3_136, max_pixels=12_845_056)
JOB: dict[str, object] = {"model": "qwen2.5-vl-7b", "method": "lora", "gpu": "a100-80-sxm", "seq": 4096}


scenario = partial(resolved, JOB)
"""A job of Qwen2.5-VL with other flags."""


@pytest.mark.parametrize(
    ("given", "made"),
    [
        # Sides to the nearest multiple of 28: 36.57 and 27.43 of them.
        ((1024, 768), (1036, 756)),
        ((28, 28), (56, 56)),  # below 3,136 pixels both sides double
        ((14, 100), (28, 168)),  # 14 rounds to 0: both sides grow by the root of 3,136 / 1,400, then up to 28
        ((8000, 4000), (5068, 2520)),  # above 12,845,056 pixels: divided by the root of 2.49, then down to 28
    ],
)
def test_sides_become_multiples_within_the_limits(given: tuple[int, int], made: tuple[int, int]) -> None:
    """Worked out by hand from the processor's rule."""
    assert resized(QWEN, *given) == made


def test_patches_and_tokens_of_an_image() -> None:
    """74 x 54 patches of 1036 x 756 pixels; four of them are a token;
    a patch holds two frames of three colours.
    """
    images = scenario(images_per_sample=2, image_size="1024x768").recipe.batch.images
    assert (images.per_sample, images.patches, images.tokens, images.numbers) == (
        2,
        3_996,
        999,
        3_996 * 3 * 2 * 14 * 14,
    )


def test_llava_has_one_size_of_image() -> None:
    """24 x 24 patches and a class token, of which 576 reach the language model, whatever the size."""
    images = scenario(model="llava-1.5-7b", images_per_sample=1).recipe.batch.images
    assert (images.width, images.height, images.patches, images.tokens) == (336, 336, 577, 576)


def test_a_job_without_images_says_so() -> None:
    """The tower is loaded and does not run: that is an assumption."""
    made = scenario()
    assert made.recipe.batch.images is None
    assert "tower is loaded" in made.assumption("images_per_sample").note


@pytest.mark.parametrize(
    ("said", "sees", "word"),
    [
        ({}, False, "Qwen3_5ForCausalLM"),
        ({"stack": "axolotl"}, True, "AutoModelForImageTextToText"),
        ({"stack": "llama-factory"}, True, "AutoModelForImageTextToText"),
        ({"stack": "trl"}, True, "AutoModelForImageTextToText"),
        ({"stack": "trl", "gpus": 2, "sharding": "zero3"}, True, "AutoModelForImageTextToText"),
        ({"images_per_sample": 0, "freeze": "vision_tower"}, False, "Qwen3_5ForCausalLM"),
        ({"images_per_sample": 2, "image_size": "1024x768"}, True, "AutoModelForImageTextToText"),
        ({"task": "reward"}, True, "AutoModelForSequenceClassification"),
    ],
)
def test_the_part_of_a_checkpoint_that_is_loaded(said: dict[str, object], sees: bool, word: str) -> None:
    """Transformers has a class for the text of Qwen3.5; images or the tool load its tower, too,
    and the answer says which.
    """
    made = scenario(model="qwen3.5-9b", **said)
    assert (made.model.vision is not None) is sees
    assert word in made.assumption("model").note
    # 27 layers of 1,152 and the merger; the text part is Qwen3_5ForCausalLM.
    assert made.model.param_count - (456_010_480 if sees else 0) == (
        8_953_803_264 if "task" not in said else 7_936_688_640
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"images_per_sample": 1}, "missing image_size"),
        ({"images_per_sample": 5, "image_size": "1024x768"}, "images-without-room"),
        ({"images_per_sample": 1, "image_size": "large"}, "such as 1024x768"),
        ({"images_per_sample": 1, "image_size": "20000x50"}, "200 times"),
        ({"model": "qwen2.5-7b", "images_per_sample": 1}, "no vision tower"),
        ({"model": "qwen2.5-7b", "freeze": "vision_tower"}, "no vision tower"),
        ({"freeze": "eyes"}, "vision_tower, projector, language_model"),
        ({"freeze": "vision_tower;projector;language_model"}, "nothing is trained"),
        ({"images_per_sample": 1, "image_size": "512x512", "attention": "eager"}, "vision-eager"),
        ({"images_per_sample": 1, "image_size": "512x512", "stack": "unsloth"}, "vision-code"),
        ({"images_per_sample": 1, "image_size": "512x512", "sharding": "fsdp1", "gpus": 2}, "vision-fsdp1"),
        (
            {"sharding": "fsdp1", "gpus": 2, "method": "full", "freeze": "vision_tower"},
            "train-layers-divided",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused(said: dict[str, object], words: str) -> None:
    """Each refusal names the thing and the way out."""
    with pytest.raises(UsageError, match=words):
        scenario(**said)


@pytest.mark.parametrize(
    "text", ["", "1024", "1024x", "x768", "0x5", "-3x4", "1e3x4", "123456x2", "1024x768x3"]
)
def test_a_size_that_is_none_is_refused(text: str) -> None:
    """Nothing is guessed about a size."""
    with pytest.raises(UsageError, match="image_size must be"):
        parse_size(text)
