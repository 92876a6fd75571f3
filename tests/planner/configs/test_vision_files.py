"""What LLaMA-Factory's, Axolotl's and TRL's files say of images and of the parts of a model that sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.domain.vision import Images
from planner.errors import NotModelledError
from tests.files import filled, read

MISTRAL = "mistralai/Mistral-Small-3.1-24B-Instruct-2503"
QWEN = "model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct\n"
FACTORY = QWEN + "finetuning_type: lora\ntemplate: qwen2_vl\nbf16: true\ncutoff_len: 2048\n"
GEMMA = FACTORY.replace("Qwen/Qwen2.5-VL-7B-Instruct", "google/gemma-3-4b-it").replace("qwen2_vl", "gemma3")
LLAVA_NEXT = FACTORY.replace("Qwen/Qwen2.5-VL-7B-Instruct", "llava-hf/llava-v1.6-mistral-7b-hf")
LLAVA_NEXT = LLAVA_NEXT.replace("qwen2_vl", "llava_next_mistral").replace("2048", "4096")
AXOLOTL = (
    "base_model: Qwen/Qwen2.5-VL-7B-Instruct\nadapter: lora\nlora_r: 8\nlora_target_linear: "
    "true\nsequence_len: 2048\nlora_mlp_kernel: false\n"
)
TRL = QWEN + "use_peft: true\nlora_target_modules: all-linear\nmax_length: 4096\ntrust_remote_code: false\n"


def recipe_of(folder: Path, text: str, **flags: object) -> Any:
    """The recipe of a file on one card."""
    return filled(read(folder, text), {"gpu": "a100-80-sxm", **flags}).recipe


def images_of(folder: Path, text: str, **flags: object) -> tuple[int, int, int] | None:
    """Images of a sample, and their width and height."""
    images: Images | None = recipe_of(folder, text, **flags).batch.images
    return None if images is None else (images.per_sample, images.width, images.height)


@pytest.mark.parametrize(
    ("text", "images"),
    [
        (FACTORY, (1, 768, 768)),
        (FACTORY + "image_max_pixels: 262144\n", (1, 512, 512)),
        (FACTORY + "image_resolution: 448\n", (1, 448, 448)),
        (AXOLOTL, None),
        # 45 x 45 tokens of 28 pixels are 2,025 of the 2,048.
        (AXOLOTL + "processor_type: AutoProcessor\n", (1, 1260, 1260)),
        (AXOLOTL + "processor_type: AutoProcessor\nimage_size: 512\n", (1, 512, 512)),
        (AXOLOTL + "processor_type: AutoProcessor\nimage_size: [640, 480]\n", (1, 640, 480)),
        (TRL, (1, 1792, 1792)),
        (LLAVA_NEXT, (1, 768, 768)),
        # Of any size: its processor makes each a square of 896. LLaMA-Factory's own run of six layers with
        # three of the tower allocated 15.45 GiB at batch 2, and 15.44 are predicted.
        (GEMMA, (1, 896, 896)),
        (GEMMA.replace("3-4b-it", "3-1b-it"), None),
        (
            FACTORY.replace("Qwen/Qwen2.5-VL-7B-Instruct", MISTRAL).replace("qwen2_vl", "mistral_small")
            + "dataset: mllm_demo\n",
            (1, 768, 768),
        ),
        # Qwen3.5 is mostly trained on text.
        (FACTORY.replace("Qwen2.5-VL-7B-Instruct", "Qwen3.5-9B").replace("qwen2_vl", "qwen3_5"), None),
        (FACTORY.replace("Qwen/Qwen2.5-VL-7B-Instruct", MISTRAL).replace("qwen2_vl", "mistral_small"), None),
        # The name of the data says images.
        (
            FACTORY.replace("Qwen2.5-VL-7B-Instruct", "Qwen3.5-9B").replace("qwen2_vl", "qwen3_5")
            + "dataset: mllm_demo\n",
            (1, 768, 768),
        ),
        (TRL.replace("Qwen2.5-VL-7B-Instruct", "Qwen3.5-9B"), None),
        # TRL takes no images with packing.
        (TRL + "packing: true\n", None),
    ],
)
def test_images_of_a_file(text: str, images: tuple[int, int, int] | None, tmp_path: Path) -> None:
    """One image, as large as the tool leaves any; flags say otherwise."""
    assert images_of(tmp_path, text) == images


def test_flags_win(tmp_path: Path) -> None:
    """Also over what a tool does by itself."""
    assert images_of(tmp_path, TRL, images_per_sample=3, image_size="640x480") == (3, 640, 480)
    assert images_of(tmp_path, FACTORY, images_per_sample=0) is None
    qwen = FACTORY.replace("Qwen2.5-VL-7B-Instruct", "Qwen3.5-9B").replace("qwen2_vl", "qwen3_5_nothink")
    assert images_of(tmp_path, qwen, images_per_sample=2) == (2, 768, 768)


@pytest.mark.parametrize(
    ("text", "frozen"),
    [
        (FACTORY, ("vision_tower", "projector")),
        (FACTORY.replace("lora", "full"), ("vision_tower", "projector")),
        (FACTORY.replace("lora", "full") + "freeze_multi_modal_projector: false\n", ("vision_tower",)),
        (FACTORY + "freeze_vision_tower: false\n", ("projector",)),
        (FACTORY + "freeze_multi_modal_projector: false\n", ("vision_tower", "projector")),
        (FACTORY.replace("lora", "full") + "train_mm_proj_only: true\n", ("vision_tower", "language_model")),
        (TRL, ()),
    ],
)
def test_frozen_parts(text: str, frozen: tuple[str, ...], tmp_path: Path) -> None:
    """LLaMA-Factory freezes tower and projector unless told otherwise; adapters never reach a projector
    beside a frozen tower.
    """
    assert recipe_of(tmp_path, text).frozen == frozen


@pytest.mark.parametrize(
    "text",
    [
        FACTORY + "freeze_multi_modal_projector: false\nfreeze_vision_tower: false\n",
        FACTORY + "freeze_multi_modal_projector: false\nlora_target: merger.mlp.0\n",
        FACTORY + "image_do_pan_and_scan: true\n",
        FACTORY.replace("qwen2_vl", "kimi_vl"),
        FACTORY.replace("Qwen/Qwen2.5-VL-7B-Instruct", "OpenGVLab/InternVL3-8B-hf").replace(
            "qwen2_vl", "intern_vl"
        ),
        FACTORY.replace("Qwen2.5-VL-7B", "Qwen2.5-7B"),
        AXOLOTL.replace("Qwen2.5-VL-7B", "Qwen2.5-7B") + "processor_type: AutoProcessor\n",
    ],
)
def test_what_is_not_modelled(text: str, tmp_path: Path) -> None:
    """Adapters on a projector, images cut into several, and other towers."""
    with pytest.raises(NotModelledError):
        recipe_of(tmp_path, text)


def test_models_of_text_alone_take_none(tmp_path: Path) -> None:
    """TRL's default says nothing to them."""
    assert images_of(tmp_path, TRL.replace("Qwen2.5-VL-7B", "Qwen2.5-7B")) is None
