"""``from_pretrained`` of models of diffusers, without weights:
the configuration from a folder or from the Hub's cache.

Source: diffusers 0.42 models/modeling_utils.py (``ModelMixin.from_pretrained``, ``_keep_in_fp32_modules``).
"""

# ruff: noqa: SLF001 - what torch and diffusers call private here has no public name

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from measure.dry_run.guesses import Guesses, not_here
from measure.dry_run.libraries.importing import Change, OnImport


def install(imports: OnImport, guesses: Guesses) -> None:
    """Change diffusers when the program imports it."""
    imports.add("diffusers.configuration_utils", _name_what_is_missing)
    imports.add("diffusers.models.modeling_utils", _load_nothing(guesses))


def _name_what_is_missing(module: ModuleType) -> None:
    base: Any = module.ConfigMixin
    load = base.load_config.__func__

    def load_config(cls: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(cls, *args, **kwargs)
        except OSError as error:
            name = _name_of(args, kwargs)
            if Path(name).exists():
                raise
            why = "is not in the Hub's cache; download it first, or name a folder that has it"
            raise not_here(OSError, f"{cls.config_name} of {name} {why}") from error

    base.load_config = classmethod(load_config)


def _name_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return str(args[0] if args else kwargs["pretrained_model_name_or_path"])


def _load_nothing(guesses: Guesses) -> Change:
    """Quantised models, those that are spread over devices, and those that keep parts in fp32 are loaded as
    they are, and so need their files.
    """

    def change(module: ModuleType) -> None:
        base: Any = module.ModelMixin
        load = base.from_pretrained.__func__

        def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
            dtype = kwargs.get("dtype") or kwargs.get("torch_dtype") or torch.float32
            keeps = cls._keep_in_fp32_modules and dtype != torch.float32
            if keeps or kwargs.get("quantization_config") or kwargs.get("device_map"):
                return load(cls, *args, **kwargs)
            config, others = cls.load_config(*args, return_unused_kwargs=True, **kwargs)
            with module.accelerate.init_empty_weights():
                model = cls.from_config(config, **others)
            for each in model.modules():
                _fill(each)
            name, content = _name_of(args, kwargs), f"none, in {str(dtype).removeprefix('torch.')}"
            guesses.assume("weights of a checkpoint", content, name)
            model.register_to_config(_name_or_path=name)
            return model.to(dtype).eval()

        base.from_pretrained = classmethod(from_pretrained)

    return change


def _fill(module: torch.nn.Module) -> None:
    """Give a module's own weights memory on the host, which nothing touches."""
    for name, weight in module._parameters.items():
        if weight is not None:
            module._parameters[name] = torch.nn.Parameter(torch.empty_like(weight, device="cpu"))
