"""FlashAttention 2 of Transformers where the package is not installed: torch has a copy of the kernel."""

# ruff: noqa: SLF001 - what Transformers calls private here has no public name

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType
from typing import Any

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.importing import OnImport
from measure.trace.cuda.flash_kernel import Varlen, flash_attn_func

_NAME, _VERSION = "flash_attention_2", 2


def install(imports: OnImport, guesses: Guesses) -> None:
    """Change Transformers when the program imports it, and only what is asked for by name."""
    if find_spec("flash_attn") is not None:
        return

    def load(module: ModuleType) -> None:
        others = module._lazy_imports

        def functions(implementation: str | None, *args: Any, **kwargs: Any) -> Any:
            if implementation != _NAME:
                return others(implementation, *args, **kwargs)
            guesses.assume("package flash-attn", "torch's copy of its kernel", "transformers")
            return flash_attn_func, Varlen(), None, module._pad_input, module._unpad_input

        module._lazy_imports = functions  # type: ignore[attr-defined]

    def allow(module: ModuleType) -> None:
        base: Any = module.PreTrainedModel
        check = base._flash_attn_import_error

        def checked(self: Any, flash_attn_version: int, *args: Any, **kwargs: Any) -> None:
            if flash_attn_version != _VERSION:
                check(self, flash_attn_version, *args, **kwargs)

        base._flash_attn_import_error = checked

    imports.add("transformers.modeling_flash_attention_utils", load)
    imports.add("transformers.modeling_utils", allow)
