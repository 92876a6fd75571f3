"""Tiles and tokens of an image against the processors that Transformers ships."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planner.catalog.models import load_model
from planner.domain.vision import Images
from planner.intake.images import images_of
from tests.extras import import_or_skip

torch = import_or_skip("torch")
transformers = import_or_skip("transformers")

SIZES = [
    *((side, side) for side in (32, 224, 336, 448, 672, 768, 900, 1344, 4000)),
    *((640, 480), (480, 640), (1024, 768), (1920, 1080), (1000, 201), (335, 337), (100, 3000), (5000, 20)),
]


def made(name: str, width: int, height: int) -> Images:
    """One image of a model of the catalog."""
    vision = load_model(name).spec.vision
    assert vision is not None
    return images_of(vision.rule, vision, 1, (width, height))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_tiles_of_internvl_are_those_of_its_processor(width: int, height: int) -> None:
    """The grid, and one tile of the whole beside several; each gives as many tokens as the processor says."""
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.internvl.processing_internvl import InternVLProcessor

    images = made("internvl3-8b", width, height)
    processor = GotOcr2ImageProcessorPil(size={"height": 448, "width": 448})
    n_tiles = processor.get_number_of_image_patches(height, width, dict(InternVLProcessor.images_kwargs))
    assert (images.tiles, images.tokens) == (n_tiles, n_tiles * 256)
    assert images.numbers == n_tiles * 3 * 448 * 448
    assert (images.patches, images.tile_patches) == (n_tiles * 1025, 1025)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_tokens_of_llava_next_are_those_of_its_processor(width: int, height: int) -> None:
    """The canvas, what it has around the image, and the ends of rows."""
    from transformers.models.llava_next.configuration_llava_next import LlavaNextConfig
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

    images = made("llava-1.6-mistral-7b", width, height)
    canvases = LlavaNextConfig().image_grid_pinpoints
    unpadded: Any = LlavaNextProcessor._get_unpadded_features
    stands_in: Any = SimpleNamespace(
        patch_size=14, num_additional_image_tokens=1,
        image_processor=SimpleNamespace(image_grid_pinpoints=canvases),
        _get_unpadded_features=lambda *sides: unpadded(stands_in, *sides),
    )  # fmt: skip
    # The class token is among them, which the strategy "default" takes off.
    count: Any = LlavaNextProcessor._get_number_of_features
    assert images.tokens == count(stands_in, height, width, 336, 336) - 1
    assert images.tiles == image_size_to_num_patches((height, width), canvases, 336)


@pytest.mark.parametrize(("width", "height"), [size for size in SIZES if size != (5000, 20)])
def test_tokens_of_mistral3_are_those_of_its_processor(width: int, height: int) -> None:
    """No side above 1,540 pixels, whole tokens of 28, and one for the end of each row."""
    import numpy as np
    from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

    images = made("mistral-small-3.1-24b", width, height)
    picture = np.broadcast_to(np.zeros(1, dtype=np.uint8), (height, width, 3))
    sides = get_resize_output_image_size(picture, size=(1540, 1540), patch_size=(28, 28))
    rows, columns = (side // 28 for side in sides)
    assert images.tokens == rows * (columns + 1)
    assert images.patches == 4 * rows * columns
    assert images.numbers == 3 * sides[0] * sides[1]


@cache
def functions_of_llama4() -> dict[str, Any]:
    """Those of its processor, whose module is not imported without torchvision, though they need none."""
    (folder,) = transformers.models.llama4.__path__
    tree = ast.parse((Path(folder) / "image_processing_llama4.py").read_text(encoding="utf-8"))
    names = ("get_factors", "find_supported_resolutions", "get_best_fit")
    wanted: list[ast.stmt] = [
        each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name in names
    ]
    known: dict[str, Any] = {
        "torch": torch,
        "defaultdict": defaultdict,
        "lru_cache": lru_cache,
        "SizeDict": Any,
    }
    exec(compile(ast.Module(wanted, []), folder, "exec"), known)
    return known


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_tiles_of_llama_4_are_those_of_its_processor(width: int, height: int) -> None:
    """Those of the canvas that fits best, and the whole beside several."""
    from transformers.image_utils import SizeDict

    processor, images = functions_of_llama4(), made("llama-4-scout", width, height)
    canvases = torch.tensor(processor["find_supported_resolutions"](16, SizeDict(height=336, width=336)))
    rows, columns = (int(side) // 336 for side in processor["get_best_fit"]((height, width), canvases))
    n_tiles = rows * columns + (rows * columns > 1)
    assert (images.tiles, images.tokens) == (n_tiles, 144 * n_tiles)
    assert images.numbers == n_tiles * 3 * 336 * 336
