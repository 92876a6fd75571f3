"""Modules of Transformers on the meta device, which hold no numbers."""

from __future__ import annotations

from typing import Any

from tests.extras import import_or_skip

torch = import_or_skip("torch")
transformers = import_or_skip("transformers")


def built(config: dict[str, Any], auto: str = "AutoModelForCausalLM") -> Any:
    """The module of a config, with tied tensors tied."""
    with torch.device("meta"):
        module = getattr(transformers, auto).from_config(transformers.AutoConfig.for_model(**config))
    module.tie_weights()
    return module


def n_parameters(module: Any) -> int:
    """Elements of its parameters, tied ones once."""
    return sum({id(tensor): tensor.numel() for tensor in module.parameters()}.values())
