"""Transformers 4: up to 4.49 it finds and reads the files of a checkpoint in other places, and up to 4.53
FlashAttention 2 is imported as a package.

Source: transformers 4.46.3, 4.49.0, 4.53.3 modeling_utils.py (``from_pretrained``,
``_load_pretrained_model``), modeling_flash_attention_utils.py.
"""

# ruff: noqa: SLF001 - what Transformers calls private here has no public name

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from types import ModuleType
from typing import Any

import torch

from measure.dry_run.libraries.importing import OnImport
from measure.trace.cuda.flash_kernel import Varlen, flash_attn_func

# No file of safetensors: those would be opened for their metadata.
_WEIGHTS = "weights-without-content.bin"
_ENDINGS = (".safetensors", ".bin", ".index.json")
_CHANGED = (4, 54)
# Before, each model imports the package itself (4.41 and 4.42 modeling_llama.py).
_SHARED = (4, 43)

Content = Callable[[Any, str], dict[str, torch.Tensor]]


def imports_flash_attention() -> bool:
    """Whether the program will find a version that imports the package flash-attn where it is defined."""
    return _release() < _CHANGED


def _release() -> tuple[int, int]:
    try:
        major, minor = version("transformers").split(".")[:2]
    except PackageNotFoundError:
        return _CHANGED
    return int(major), int(minor)


def load_models(module: ModuleType, dtype_of: Callable[[str], torch.dtype], content: Content) -> None:
    """Every checkpoint of the Hub is one file without content.

    ``content``: the tensors of a model, for the name of its checkpoint.
    """
    find, read, base = module.cached_file, module.load_state_dict, module.PreTrainedModel
    load = base._load_pretrained_model.__func__
    loading: list[dict[str, torch.Tensor]] = []

    def cached_file(name: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
        if filename.endswith(_ENDINGS):
            return str(PurePath(str(name), _WEIGHTS))
        return find(name, filename, *args, **kwargs)

    def load_state_dict(checkpoint_file: Any, *args: Any, **kwargs: Any) -> Any:
        if not str(checkpoint_file).endswith(_WEIGHTS):
            return read(checkpoint_file, *args, **kwargs)
        # Before the model is there, it is asked for the dtype of the whole.
        name = str(PurePath(str(checkpoint_file)).parent)
        return loading.pop() if loading else {"weight": torch.empty(1, dtype=dtype_of(name), device="meta")}

    def load_pretrained(
        cls: Any, model: Any, state_dict: Any, loaded_keys: Any, file: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(file, str) and file.endswith(_WEIGHTS):
            tensors = content(model, str(PurePath(file).parent))
            loaded_keys = list(tensors)
            if state_dict is None:
                loading.append(tensors)
            else:
                state_dict = tensors
        return load(cls, model, state_dict, loaded_keys, file, *args, **kwargs)

    changed: Mapping[str, Any] = {"cached_file": cached_file, "load_state_dict": load_state_dict}
    vars(module).update(changed)
    base._load_pretrained_model = classmethod(load_pretrained)


def tied_names(model: Any) -> set[str]:
    """Names that a checkpoint leaves out, because they are another tensor's."""
    named = getattr(model, "_tied_weights_keys", None)
    return set(named or ()) if model.config.tie_word_embeddings else set()


def install_flash_attention(imports: OnImport, assume: Callable[[str], None]) -> None:
    """FlashAttention 2 where it is asked for by name; the package itself stays unknown to all others.

    Versions whose models import it by themselves do not find it.
    """
    if _release() < _SHARED:
        return
    imports.add("transformers.utils.import_utils", _say_available)
    imports.wrap("transformers.modeling_flash_attention_utils", _package)
    imports.add("transformers.modeling_utils", partial(_allow, assume))


def _say_available(module: ModuleType) -> None:
    vars(module)["is_flash_attn_2_available"] = lambda: True


def _allow(assume: Callable[[str], None], module: ModuleType) -> None:
    base: Any = module.PreTrainedModel
    enable = base._check_and_enable_flash_attn_2.__func__

    def enable_and_say(cls: Any, /, *args: Any, hard_check_only: bool = False, **kwargs: Any) -> Any:
        if not hard_check_only:
            assume("transformers")
        return enable(cls, *args, hard_check_only=hard_check_only, **kwargs)

    base._check_and_enable_flash_attn_2 = classmethod(enable_and_say)


@contextmanager
def _package() -> Iterator[None]:
    """The package, for the one module that takes its functions."""
    contents: dict[str, dict[str, Any]] = {
        "flash_attn": {"flash_attn_func": flash_attn_func, "flash_attn_varlen_func": Varlen()},
        "flash_attn.bert_padding": {
            "index_first_axis": _index_first_axis,
            "pad_input": _pad_input,
            "unpad_input": None,
        },
        # Since 4.51; one model of sound and text calls it.
        "flash_attn.layers": {},
        "flash_attn.layers.rotary": {"apply_rotary_emb": None},
    }
    for name, content in contents.items():
        sys.modules[name] = ModuleType(name)
        # Transformers 4.49 looks for the package while this module is imported.
        vars(sys.modules[name]).update(content, __spec__=ModuleSpec(name, None))
    try:
        yield
    finally:
        for name in contents:
            del sys.modules[name]


def _index_first_axis(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """A gather of whole rows (flash-attn 2.8 bert_padding.py IndexFirstAxis)."""
    rows = tensor.flatten(1)
    chosen = torch.gather(rows, 0, indices[:, None].expand(-1, rows.shape[1]))
    return chosen.reshape(-1, *tensor.shape[1:])


def _pad_input(tensor: torch.Tensor, indices: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """Rows put into zeros (flash-attn 2.8 bert_padding.py IndexPutFirstAxis)."""
    out = torch.zeros(batch * length, *tensor.shape[1:], device=tensor.device, dtype=tensor.dtype)
    out[indices] = tensor
    return out.view(batch, length, *tensor.shape[1:])
