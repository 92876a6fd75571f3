"""What a file of Axolotl says about images.

Keys: axolotl 0.19.0 utils/schemas/multimodal.py, loaders/processor.py;
examples/{qwen2-vl,llava,llama-3-vision}/*.yaml.
"""

from __future__ import annotations

import re

from planner.configs.said_by_file import IMAGES_UNSAID, Reading
from planner.configs.shared.keys import Keys

_LANGUAGE_MODEL = re.compile(
    r"(?:model\.)?language_model\.(?:model\.)?layers\.\[\\d\]\+\.(?:\(_checkpoint_wrapped_module\.\)\?)?"
    r"\((?:mlp|cross_attn|self_attn|\|)+\)\.\((?P<names>(?:up|down|gate|q|k|v|o|\|)+)\)_proj"
)
"""The pattern of Axolotl's own examples: matrices of the layers of the language model."""


def read_images(keys: Keys, reading: Reading) -> None:
    """One image in each sample where the file loads a processor; its size where the file says one.

    Raises:
        InputFileError: a size that is neither a number nor two.
    """
    if keys.flag("freeze_mm_modules"):
        # axolotl 067b021c8 (2026-07-24) utils/freeze.py freeze_mm_modules: what sees, hears and projects.
        where = keys.where("freeze_mm_modules")
        reading.say("freeze", ("vision_tower", "projector"), where, "what sees is frozen")
    if keys.get("processor_type") is None:
        keys.skip(("image_size",))
        return
    reading.say("images_per_sample", 1, keys.where("processor_type"), IMAGES_UNSAID)
    size = keys.get("image_size")
    if size is None:
        return
    sides = size if isinstance(size, list) and len(size) == 2 else [size, size]
    if not all(isinstance(side, int) and not isinstance(side, bool) and 0 < side < 100_000 for side in sides):
        raise keys.wrong("image_size", "a number of pixels, or width and height", size)
    reading.say("image_size", f"{sides[0]}x{sides[1]}", keys.where("image_size"))


def language_model_targets(pattern: str) -> tuple[str, ...]:
    """Names that a pattern like that of the examples reaches, which are of the language model alone;
    none of another pattern.
    """
    match = _LANGUAGE_MODEL.fullmatch(pattern)
    return tuple(f"{name}_proj" for name in match["names"].split("|") if name) if match else ()
