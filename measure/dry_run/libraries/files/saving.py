"""Saving: the file of tensors is made and stays empty, because their content is nowhere.
What was saved comes back with its shapes when it is loaded again.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from measure.dry_run.libraries.importing import OnImport

# Small tensors of the host keep their values: states of generators, numbers of steps.
_MOST_ELEMENTS = 1 << 16


@dataclass(frozen=True, slots=True)
class _Shape:
    """A tensor without its content; ``kept`` has that of a small one on the host."""

    size: torch.Size
    dtype: torch.dtype
    device: torch.device
    kept: torch.Tensor | None

    def made(self, device: Any) -> torch.Tensor:
        """The tensor on ``device``, or where it was."""
        if self.kept is not None:
            return self.kept.to(device or self.device)
        return torch.empty(self.size, dtype=self.dtype, device=device or self.device)


def install(imports: OnImport) -> None:
    """Change what writes tensors, and what reads them again."""
    save, load = torch.save, torch.load
    saved: dict[str, Any] = {}

    def without_content(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not any(isinstance(each, torch.Tensor) for each in tree_leaves(obj)):
            save(obj, f, *args, **kwargs)
        elif isinstance(f, str | os.PathLike):
            Path(f).touch()
            saved[os.path.realpath(f)] = tree_map(_shape_of, obj)

    def again(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        known = saved.get(os.path.realpath(f)) if isinstance(f, str | os.PathLike) else None
        if known is None or Path(f).stat().st_size > 0:
            return load(f, map_location, *args, **kwargs)
        # A function or a table hardly ever means another place than the host or the one before.
        device = "cpu" if callable(map_location) else None if isinstance(map_location, dict) else map_location
        return _made(known, device)

    torch.save, torch.load = without_content, again
    imports.add("safetensors.torch", _empty_files)
    imports.add("torch.distributed.checkpoint", _empty_folders)


def _empty_files(module: ModuleType) -> None:
    load: Any = module.load_file
    saved: dict[str, Any] = {}

    def save_file(tensors: Any, filename: Any, metadata: Any = None) -> None:
        del metadata
        Path(filename).touch()
        saved[os.path.realpath(filename)] = tree_map(_shape_of, tensors)

    def load_file(filename: Any, device: Any = "cpu", *args: Any, **kwargs: Any) -> Any:
        known = saved.get(os.path.realpath(filename))
        if known is None or Path(filename).stat().st_size > 0:
            return load(filename, device, *args, **kwargs)
        return _made(known, device)

    module.save_file, module.load_file = save_file, load_file  # type: ignore[attr-defined]


def _empty_folders(module: ModuleType) -> None:
    """Checkpoints in parts: their plan asks ranks that are not there what they hold."""

    def save(*_: Any, checkpoint_id: Any = None, **__: Any) -> None:
        if checkpoint_id is not None:
            Path(checkpoint_id).mkdir(parents=True, exist_ok=True)

    def async_save(*args: Any, **kwargs: Any) -> Future[None]:
        done: Future[None] = Future()
        save(*args, **kwargs)
        done.set_result(None)
        return done

    vars(module).update(save=save, save_state_dict=save, async_save=async_save)


def _shape_of(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    small = value.device.type == "cpu" and value.numel() <= _MOST_ELEMENTS
    return _Shape(value.shape, value.dtype, value.device, value.detach().clone() if small else None)


def _made(known: Any, device: Any) -> Any:
    return tree_map(lambda each: each.made(device) if isinstance(each, _Shape) else each, known)
