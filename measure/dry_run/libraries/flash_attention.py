"""FlashAttention 2 and 3 where their packages are not installed, for Transformers and from the Hub:
torch has a copy of the kernel of the second.  The third allocates in its backward pass fp32 sums of the heads
of keys where the second repeats them, a temporary of one layer.
"""

# ruff: noqa: SLF001 - what Transformers calls private here has no public name

from __future__ import annotations

import re
from functools import partial
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from measure.dry_run.cuda.cuda_bindings import always
from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries import flash_attention_kernels, transformers_4
from measure.dry_run.libraries.importing import Change, OnImport
from measure.trace.cuda.flash_kernel import Varlen, flash_attn_func

_VERSIONS = {"flash_attention_2": 2, "flash_attention_3": 3}
# Repositories that the package kernels loads, by how their names end: those of Transformers 5.16 and 5.23
# (modeling_flash_attention_utils.py, FLASH_ATTN_KERNEL_FALLBACK), and other builds of the same code.
_ON_THE_HUB = re.compile(r"flash-att(?:n|ention)-?[23]?$")
# The third is for Hopper's instructions: flash-attention hopper/flash_api.cpp mha_fwd.
_CAPABILITY_OF_3 = 9


def install(imports: OnImport, guesses: Guesses) -> None:
    """Change Transformers and the package kernels when the program imports them,
    and only what is asked for by name.
    """
    if find_spec("flash_attn") is not None:
        flash_attention_kernels.install(guesses)
        return
    if transformers_4.imports_flash_attention():
        transformers_4.install_flash_attention(imports, partial(_assume, guesses))
    else:
        imports.add("kernels", _from_hub(guesses))
        imports.add("transformers.modeling_flash_attention_utils", _as_package(guesses))
        imports.add("transformers.modeling_utils", _allow)


def _assume(guesses: Guesses, who: str) -> None:
    guesses.assume("package flash-attn", "torch's copy of its kernel", who)


def _from_hub(guesses: Guesses) -> Change:
    """A program may ask for a kernel and go on without it, so one that does not load is noted."""

    def change(module: ModuleType) -> None:
        others, has_others = module.get_kernel, module.has_kernel

        def get_kernel(repo_id: str, *args: Any, **kwargs: Any) -> Any:
            if _ON_THE_HUB.search(repo_id):
                _assume(guesses, repo_id)
                found = SimpleNamespace(flash_attn_func=flash_attn_func, flash_attn_varlen_func=Varlen())
                found.flash_attn_interface = found
                return found
            try:
                return others(repo_id, *args, **kwargs)
            except Exception:
                guesses.assume("a kernel from the Hub", "not here; libraries may run otherwise", repo_id)
                raise

        def has_kernel(repo_id: str, *args: Any, **kwargs: Any) -> bool:
            return bool(_ON_THE_HUB.search(repo_id)) or has_others(repo_id, *args, **kwargs)

        vars(module).update(get_kernel=get_kernel, has_kernel=has_kernel)

    return change


def _as_package(guesses: Guesses) -> Change:
    def change(module: ModuleType) -> None:
        others = module._lazy_imports

        def functions(implementation: str | None, *args: Any, **kwargs: Any) -> Any:
            if implementation not in _VERSIONS:
                return others(implementation, *args, **kwargs)
            _assume(guesses, "transformers")
            # Transformers 5 asks for a kernel with a cache, too, which training does not use.
            cached = (None,) if hasattr(module, "_flash_with_kvcache_fn") else ()
            return flash_attn_func, Varlen(), *cached, module._pad_input, module._unpad_input

        # Falcon, GPT-J and others ask these when they are imported or made; flash-attn has had the mask of
        # the lower right since 2.1.
        asked = {"is_flash_attn_available": True, "flash_attn_supports_top_left_mask": False}
        answers = {name: always(value) for name, value in asked.items() if hasattr(module, name)}
        vars(module).update(answers, _lazy_imports=functions)

    return change


def _allow(module: ModuleType) -> None:
    base: Any = module.PreTrainedModel
    if not hasattr(base, "_flash_attn_import_error"):
        # Transformers 4.54 to 4.57 ask this function, where FlashAttention 2 was asked for by name.
        vars(module)["is_flash_attn_2_available"] = lambda: True
        return
    check = base._flash_attn_import_error

    def checked(self: Any, flash_attn_version: int, *args: Any, **kwargs: Any) -> None:
        if not _runs(flash_attn_version):
            check(self, flash_attn_version, *args, **kwargs)

    base._flash_attn_import_error = checked


def _runs(version: int) -> bool:
    """Whether the card of the dry run has such a kernel."""
    return version in _VERSIONS.values() and (
        version < max(_VERSIONS.values()) or torch.cuda.get_device_capability()[0] >= _CAPABILITY_OF_3
    )
