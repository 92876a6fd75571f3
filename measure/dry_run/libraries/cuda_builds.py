"""Packages that were compiled for CUDA, beside torch of a CPU build: what they compiled does not load,
their Python code runs.
"""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any

import torch

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.importing import Change, OnImport

# Without these torchvision 0.28 does not import (torchvision/_meta_registrations.py).
_NAMES = ("torchvision::nms", "torchvision::qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_MODES = {"GRAY": "L", "GRAY_ALPHA": "LA", "RGB": "RGB", "RGB_ALPHA": "RGBA"}


def install(imports: OnImport, guesses: Guesses) -> None:
    """torchvision takes such a library for missing by itself; torchaudio 2.11 does so where it finds none."""

    def note(package: str) -> None:
        guesses.assume("a library compiled for CUDA", "not loaded", package)

    def name_operators(module: ModuleType) -> None:
        if not module._has_ops():  # noqa: SLF001 - what torchvision asks itself
            for name in _NAMES:
                torch.library.define(name, _SCHEMA)
            note("torchvision")

    def find_no_library(module: ModuleType) -> None:
        load: Any = module._load_lib  # noqa: SLF001

        def load_or_note(name: str) -> bool:
            try:
                return bool(load(name))
            except OSError:
                note("torchaudio")
                return False

        module._load_lib = load_or_note  # type: ignore[attr-defined]  # noqa: SLF001

    def decode_by_pillow(module: ModuleType) -> None:
        try:
            module._assert_has_image_ops()  # noqa: SLF001 - what its own functions ask
        except RuntimeError:
            module.decode_image = _decoded  # type: ignore[attr-defined]

    imports.add("torch.utils.cpp_extension", _without_compiler(guesses))
    imports.add("torchvision.extension", name_operators)
    imports.add("torchvision.io.image", decode_by_pillow)
    imports.add("torchaudio._extension.utils", find_no_library)


def _without_compiler(guesses: Guesses) -> Change:
    """Programs that compile for CUDA while they run are told at once that nothing can."""

    def change(module: ModuleType) -> None:
        load: Any = module.load

        def load_or_refuse(name: str, sources: str | list[str], *args: Any, **kwargs: Any) -> Any:
            files = [sources] if isinstance(sources, str) else sources
            if not any(str(each).endswith(".cu") for each in files):
                return load(name, sources, *args, **kwargs)
            guesses.assume("an extension for CUDA that the program would compile", "not there", name)
            raise RuntimeError(f"a dry run has no compiler for CUDA, which {name} needs")

        module.load = load_or_refuse  # type: ignore[attr-defined]

    return change


# The names are torchvision's own.
def _decoded(input: Any, mode: Any = "UNCHANGED", *_: Any, **__: Any) -> torch.Tensor:  # noqa: A002
    """An image file, or its bytes, as whole numbers of (channels, height, width);
    torchvision 0.28 io/image.py.
    """
    import numpy as np
    from PIL import Image

    source = io.BytesIO(input.numpy().tobytes()) if isinstance(input, torch.Tensor) else input
    wanted = _MODES.get(getattr(mode, "name", str(mode)), "RGB")
    with Image.open(source) as image:
        pixels = torch.from_numpy(np.array(image.convert(wanted)))
    return pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1).contiguous()
