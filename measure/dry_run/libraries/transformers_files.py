"""``from_pretrained`` without weights: the configuration from a file, the cache or our catalog, and tensors without content."""

# ruff: noqa: SLF001 - what Transformers calls private here has no public name

from __future__ import annotations

from pathlib import PurePath
from types import ModuleType
from typing import Any

import torch

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.importing import OnImport
from planner.catalog.models import model_entry
from planner.errors import UnknownNameError

_WEIGHTS = "weights-without-content.safetensors"


class Checkpoints:
    """Stands in for the files of checkpoints.  Their dtype is what ``config.json`` says, else bf16."""

    def __init__(self, guesses: Guesses) -> None:
        self._guesses = guesses
        self._dtypes: dict[str, torch.dtype] = {}

    def install(self, imports: OnImport) -> None:
        """Change Transformers when the program imports it."""
        imports.add("transformers.configuration_utils", self._read_configurations)
        imports.add("transformers.modeling_utils", self._load_models)

    def _read_configurations(self, module: ModuleType) -> None:
        base: Any = module.PreTrainedConfig
        read = base._get_config_dict.__func__

        def from_catalog(cls: Any, name: Any, **kwargs: Any) -> Any:
            try:
                found, rest = read(cls, name, **kwargs)
            except OSError:
                found, rest = self._catalog_fields(str(name)), kwargs
                if found is None:
                    raise
            self._note_dtype(str(name), found)
            return found, rest

        base._get_config_dict = classmethod(from_catalog)

    def _catalog_fields(self, name: str) -> dict[str, Any] | None:
        try:
            entry = model_entry(name)
        except UnknownNameError:
            return None
        self._guesses.assume("config.json of a model", f"the catalog's {entry.id}", name)
        return entry.config_fields()

    def _note_dtype(self, name: str, fields: dict[str, Any]) -> None:
        said = str(fields.get("dtype") or fields.get("torch_dtype") or "bfloat16").removeprefix("torch.")
        found = getattr(torch, said, None)
        self._dtypes[name] = found if isinstance(found, torch.dtype) else torch.bfloat16

    def _load_models(self, module: ModuleType) -> None:
        def no_files(pretrained_model_name_or_path: Any, *_: Any, **__: Any) -> tuple[list[str], None]:
            return [str(PurePath(str(pretrained_model_name_or_path), _WEIGHTS))], None

        base: Any = module.PreTrainedModel
        load = base._load_pretrained_model

        def without_files(model: Any, state_dict: Any, checkpoint_files: Any, *args: Any, **kwargs: Any) -> Any:
            if state_dict is None and checkpoint_files and checkpoint_files[0].endswith(_WEIGHTS):
                name = str(PurePath(checkpoint_files[0]).parent)
                dtype = self._dtypes.get(name, torch.bfloat16)
                self._guesses.assume("weights of a checkpoint", f"none, in {str(dtype).removeprefix('torch.')}", name)
                state_dict, checkpoint_files = _content_free(model, dtype), None
            return load(model, state_dict, checkpoint_files, *args, **kwargs)

        module._get_resolved_checkpoint_files = no_files  # type: ignore[attr-defined]
        base._load_pretrained_model = staticmethod(without_files)


def _content_free(model: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A tensor in host memory for each one that the checkpoint would have; tied ones it has once."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    return {
        name: torch.empty(tensor.shape, dtype=dtype if tensor.is_floating_point() else tensor.dtype, device="cpu")
        for name, tensor in model.state_dict().items()
        if name not in tied
    }
