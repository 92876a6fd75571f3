"""Packages that were compiled for CUDA, beside torch of a CPU build: what they compiled does not load,
their Python code runs.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.importing import OnImport

# Without these torchvision 0.28 does not import (torchvision/_meta_registrations.py).
_NAMES, _SCHEMA = (
    ("torchvision::nms", "torchvision::qnms"),
    "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


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

    imports.add("torchvision.extension", name_operators)
    imports.add("torchaudio._extension.utils", find_no_library)
