"""``from_pretrained`` without weights: the configuration from a file, the cache or our catalog,
and tensors without content.
"""

# ruff: noqa: SLF001 - what Transformers calls private here has no public name

from __future__ import annotations

import importlib
import inspect
import json
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

import torch

from measure.dry_run.guesses import Guesses, not_here
from measure.dry_run.libraries import transformers_4
from measure.dry_run.libraries.importing import OnImport
from planner.catalog.encoders import encoder_config
from planner.catalog.models import entry_named_in, model_entry
from planner.errors import UnknownNameError

_WEIGHTS = "weights-without-content.safetensors"
# Transformers 4 would open one of safetensors for its metadata.
_WEIGHTS_4 = "weights-without-content.bin"


_WAY_OUT = (
    "is neither in the Hub's cache nor in the catalog; download it first, name a folder that has it, or say "
    "with --checkpoint which model's it is"
)


class Checkpoints:
    """Stands in for the files of checkpoints.  Their dtype is what ``config.json`` says;
    old ones say nothing and hold fp32.
    """

    def __init__(self, guesses: Guesses) -> None:
        self._guesses = guesses
        self._dtypes: dict[str, torch.dtype] = {}
        self._heads_apart: set[str] = set()

    def install(self, imports: OnImport) -> None:
        """Change Transformers when the program imports it."""
        imports.add("transformers.configuration_utils", self._read_configurations)
        imports.add("transformers.modeling_utils", self._load_models)
        imports.add("transformers.generation.utils", _without_generation_files)

    def _read_configurations(self, module: ModuleType) -> None:
        # Transformers 5 changed the name.
        base: Any = getattr(module, "PreTrainedConfig", None) or module.PretrainedConfig
        read = base._get_config_dict.__func__

        def from_catalog(cls: Any, name: Any, /, **kwargs: Any) -> Any:
            try:
                found, rest = read(cls, name, **kwargs)
            except OSError as error:
                folder = self._from_catalog(str(name))
                if folder is None:
                    if Path(str(name)).exists():
                        raise
                    raise not_here(OSError, f"config.json of {name} {_WAY_OUT}") from error
                found, rest = read(cls, folder, **{**kwargs, "revision": None, "subfolder": ""})
            # A folder with a tokenizer alone has none (5.23 configuration_utils.py).
            if found is not None:
                self._note_dtype(str(name), found)
                if found.get("tie_word_embeddings") is False:
                    self._heads_apart.add(str(name))
            return found, rest

        base._get_config_dict = classmethod(from_catalog)

    def _from_catalog(self, name: str) -> str | None:
        """A temporary folder with the ``config.json`` that the catalog has, if it has one."""
        try:
            entry, by = model_entry(name), ""
        except UnknownNameError:
            if (fields := encoder_config(name)) is not None:
                self._guesses.assume("config.json of a model", "the catalog's", name)
                return _folder_of(fields)
            found = entry_named_in(name)
            if found is None:
                return None
            entry, by = found, ", by its name alone"
        self._guesses.assume("config.json of a model", f"the catalog's {entry.id}{by}", name)
        if entry.config_fields().get("model_type") not in _known_types():
            self._guesses.refuse(
                "has a class that comes with its checkpoint; name a folder that has its code", name
            )
            return None
        return _folder_of({**_architectures(entry.config_fields()), **entry.config_fields()})

    def _note_dtype(self, name: str, fields: dict[str, Any]) -> None:
        # Models of several parts say it for each part alone.
        inner = fields.get("text_config")
        parts = (fields, inner if isinstance(inner, dict) else {})
        named = (each.get(key) for each in parts for key in ("dtype", "torch_dtype"))
        dtype = str(next(filter(None, named), "float32")).removeprefix("torch.")
        found = getattr(torch, dtype, None)
        self._dtypes[name] = found if isinstance(found, torch.dtype) else torch.float32

    def _content(self, model: Any, name: str) -> dict[str, torch.Tensor]:
        """The tensors of a checkpoint, which are listed as assumed."""
        dtype = self.dtype_of(name)
        content = f"none, in {str(dtype).removeprefix('torch.')}"
        self._guesses.assume("weights of a checkpoint", content, name)
        return _content_free(model, dtype, head_apart=name in self._heads_apart)

    def _load_models(self, module: ModuleType) -> None:
        if not hasattr(module, "_get_resolved_checkpoint_files"):
            transformers_4.load_models(module, self.dtype_of, self._content)
            return
        base: Any = module.PreTrainedModel
        load: Any = inspect.getattr_static(base, "_load_pretrained_model")
        # A function of the class until Transformers 5.
        before, weights = (1, _WEIGHTS_4) if isinstance(load, classmethod) else (0, _WEIGHTS)
        read = module.load_state_dict

        def no_files(pretrained_model_name_or_path: Any, *_: Any, **__: Any) -> tuple[list[str], None]:
            return [str(PurePath(str(pretrained_model_name_or_path), weights))], None

        def one_tensor(checkpoint_file: Any, *args: Any, **kwargs: Any) -> Any:
            # Asked for the dtype of the whole.
            if not str(checkpoint_file).endswith(weights):
                return read(checkpoint_file, *args, **kwargs)
            return {
                "weight": torch.empty(
                    1, dtype=self.dtype_of(str(PurePath(checkpoint_file).parent)), device="meta"
                )
            }

        def without_files(*args: Any, **kwargs: Any) -> Any:
            model, tensors, files = args[before : before + 3]
            if tensors is None and files and files[0].endswith(weights):
                tensors, files = self._content(model, str(PurePath(files[0]).parent)), None
            return load.__func__(*args[:before], model, tensors, files, *args[before + 3 :], **kwargs)

        module.load_state_dict = one_tensor  # type: ignore[attr-defined]
        module._get_resolved_checkpoint_files = no_files  # type: ignore[attr-defined]
        base._load_pretrained_model = type(load)(without_files)

    def dtype_of(self, name: str) -> torch.dtype:
        """Of the weights of ``name``, once its configuration was read."""
        return self._dtypes.get(name, torch.float32)


def _folder_of(fields: Mapping[str, Any]) -> str:
    """A temporary folder with a ``config.json``."""
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return str(folder)


def _architectures(fields: Mapping[str, Any]) -> dict[str, list[str]]:
    """The class that the program's own Transformers has for a model of text, or for one that sees as a whole,
    which some programs read and our catalog leaves out.
    """
    known = importlib.import_module("transformers.models.auto.modeling_auto")
    kind = fields.get("model_type")
    found = known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    if "vision_config" in fields:
        found = getattr(known, "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", {}).get(kind, found)
    return {} if found is None else {"architectures": [found]}


def _known_types() -> set[str]:
    """Kinds of models that the program's own Transformers has, and those that the program brings itself."""
    return set(importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING.keys())


def _without_generation_files(module: ModuleType) -> None:
    """Settings of text generation, which lie beside weights that are not there,
    change nothing of a training step.
    """
    base: Any = module.GenerationMixin
    if not hasattr(base, "adjust_generation_fn"):
        # Transformers before 4.53 goes on without them by itself.
        return
    adjust = base.adjust_generation_fn

    def where_there(self: Any, *args: Any, **kwargs: Any) -> None:
        with suppress(OSError):
            adjust(self, *args, **kwargs)

    base.adjust_generation_fn = where_there


def _content_free(model: Any, dtype: torch.dtype, *, head_apart: bool) -> dict[str, torch.Tensor]:
    """A tensor in host memory for each one of the checkpoint, whole where a rank holds a part;
    tied ones once.  ``head_apart``: ``config.json`` says that the head is not the embedding.
    """
    whole = {
        name: getattr(each, "ds_shape", each.shape)
        for name, each in model.named_parameters(remove_duplicate=False)
    }
    # Transformers 5 knows them by itself.
    known = getattr(model, "all_tied_weights_keys", None)
    tied = transformers_4.tied_names(model) if known is None else set(known)
    if head_apart and model.config.tie_word_embeddings:
        # T5Config of Transformers 5 says that they are tied all the same, and finds two that differ.
        tied -= _weight_of(model, model.get_output_embeddings())
    return {
        name: torch.empty(
            whole.get(name, tensor.shape),
            dtype=dtype if tensor.is_floating_point() else tensor.dtype,
            device="cpu",
        )
        for name, tensor in model.state_dict().items()
        if name not in tied
    }


def _weight_of(model: Any, module: Any) -> set[str]:
    return {f"{name}.weight" for name, each in model.named_modules() if each is module}
