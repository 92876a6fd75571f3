"""Towers over tiles of an image, and over all images in one row: what they share, copy and return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.step import parts_of
from tests.files import written
from tests.jobs import job_by

TEXT = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 1000,
}  # fmt: skip
VISION = {"hidden_size": 160, "intermediate_size": 400, "num_hidden_layers": 3, "num_attention_heads": 2}
CLIP = {**VISION, "model_type": "clip_vision_model", "image_size": 112, "patch_size": 14}
CONFIGS: dict[str, dict[str, Any]] = {
    "internvl": {
        "model_type": "internvl", "text_config": TEXT,
        "vision_config": {**VISION, "model_type": "internvl_vision", "image_size": 112, "patch_size": 14},
    },
    "llava": {"model_type": "llava", "text_config": TEXT, "vision_config": CLIP},
    "llava_next": {
        "model_type": "llava_next", "text_config": TEXT, "vision_config": CLIP,
        "image_grid_pinpoints": [[112, 224], [224, 112], [224, 224]],
    },
    "mistral3": {
        "model_type": "mistral3", "text_config": TEXT,
        "vision_config": {**VISION, "model_type": "pixtral", "image_size": 280, "patch_size": 14},
    },
}  # fmt: skip
JOB: dict[str, object] = {
    "method": "lora", "gpu": "a100-80-sxm", "seq": 1024, "images_per_sample": 2, "lora_targets": "attention",
    "freeze": "vision_tower;projector", "load_dtype": "bf16", "checkpoint_reentrant": False,
}  # fmt: skip


def job(folder: Path, kind: str, size: str, **said: object) -> Job:
    """A job of a small model of this kind, with two images of this size in its sample."""
    path = written(folder, CONFIGS[kind], "config.json")
    flags = {**JOB, "model": str(path), "image_size": size, **said}
    given = {name: value for name, value in flags.items() if value is not None}
    return job_by(given)


def test_an_image_of_internvl_is_tiles_of_8_by_8_patches(tmp_path: Path) -> None:
    """224 x 112 pixels are two tiles and one of the whole, each of 64 patches and a class token."""
    values = unit_values(job(tmp_path, "internvl", "224x112"))
    assert (values[Unit.PATCHES], values[Unit.IMAGE_PATCHES]) == (2 * 3 * 65, 65)
    assert values[Unit.PATCH_PAIRS] == 2 * 3 * 65 * 65
    assert values[Unit.PIXELS] == 2 * 3 * 3 * 112 * 112
    assert values[Unit.IMAGE_TOKENS] == 2 * 3 * 16


def test_rows_of_llava_next_end_with_a_token_and_lose_what_lies_around_the_image(tmp_path: Path) -> None:
    """100 x 50 pixels fill 16 x 8 of the 16 x 8 patches of a canvas of 224 x 112; 60 x 50 pixels, on one of
    224 x 224, leave a row out above and below.
    """
    wide = job(tmp_path, "llava_next", "100x50").recipe.batch.images
    assert wide is not None
    assert (wide.tiles, wide.tokens) == (3, 64 + 8 * (16 + 1))
    near = job(tmp_path, "llava_next", "240x200").recipe.batch.images
    assert near is not None
    # 200 x 224 / 240 are 186.7 pixels, 13.3 rows of 14: one of the 16 goes at either end.
    assert (near.tiles, near.tokens) == (5, 64 + 14 * (16 + 1))


def test_rows_of_mistral3_end_with_a_token_that_the_tower_does_not_see(tmp_path: Path) -> None:
    """300 x 100 pixels become 280 x 93, which are 10 x 4 tokens of 28 pixels, each of four patches."""
    images = job(tmp_path, "mistral3", "300x100").recipe.batch.images
    assert images is not None
    assert (images.patches, images.tokens, images.numbers) == (160, 4 * 11, 160 * 3 * 14 * 14)


@pytest.mark.parametrize(("size", "copies"), [("280x112", 0), ("140x140", 1)])
def test_a_mask_over_uneven_rows_is_copied_by_each_layer(tmp_path: Path, size: str, copies: int) -> None:
    """Two images of 160 patches are a multiple of 16 keys, two of 100 are not."""
    parts = parts_of(job(tmp_path, "mistral3", size, gradient_checkpointing=False))
    masks = {part.name: part.template.units.count(Unit.PATCH_SQUARES) for part in parts}
    assert masks["embeddings"] == 1
    assert masks["vision layer"] == copies


def test_flash_attention_needs_no_mask_of_images(tmp_path: Path) -> None:
    """It takes the lengths of the images."""
    parts = parts_of(job(tmp_path, "mistral3", "140x140", attention="flash2"))
    assert not any(Unit.PATCH_SQUARES in part.template.units for part in parts)


def test_what_the_tower_let_go_of_is_gone_before_the_language_model(tmp_path: Path) -> None:
    """Pixels in 16 bits go with the projector, and embeddings without images with the scatter."""
    parts = {part.name: part.template for part in parts_of(job(tmp_path, "internvl", "224x112"))}
    assert "pixel_values" in parts["projector"].crossing
    assert not {"pixel_values", "token_embeds"} & {*parts["head"].crossing}


def test_a_branch_is_weighed_by_a_parameter_of_the_layer(tmp_path: Path) -> None:
    """Two vectors of the tower's width in each layer, which a trained tower has gradients of."""
    full: dict[str, object] = {"method": "full", "lora_targets": None, "freeze": "language_model"}
    made = parts_of(job(tmp_path, "internvl", "224x112", **full))
    layer = next(part.template for part in made if part.name == "vision layer")
    assert sum(each.count == VISION["hidden_size"] for each in layer.parameters) >= 2
    assert any(op == "mul" for _, op in (layer.ops[slot] for slot in layer.stages["forward"] if slot >= 0))
