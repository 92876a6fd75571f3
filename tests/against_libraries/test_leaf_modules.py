"""Classes of layers, mixtures and experts of Transformers' own modules, as names of them are read."""

from __future__ import annotations

from typing import Any

import pytest

from planner.intake.leaf_modules import EXPERTS_FIRST, leaf_kind
from planner.words import words
from tests.extras import import_or_skip
from tests.jobs import resolved

# One model of each type that DeepSpeed, LLaMA-Factory, Axolotl or ms-swift name a class of.
MODELS = words(
    """
    mixtral-8x7b qwen1.5-moe-a2.7b qwen3-30b-a3b qwen3-next-80b-a3b gpt-oss-20b deepseek-v2-lite deepseek-v3
    glm-4.5-air glm-4.7-flash granite-3.0-1b-a400m olmoe-1b-7b phi-3.5-moe ernie-4.5-21b-a3b hy3-preview
    lfm2-8b-a1b minimax-m2 jamba-v0.1 nemotron-3-nano-30b-a3b
    """
)


@pytest.mark.parametrize("name", MODELS)
def test_names_of_classes(name: str) -> None:
    """A mixture is the module around the experts; which of its modules is made first, its source says."""
    scenario = resolved(model=name, method="full", gpu="h100-sxm", gpus="8", seq="512")
    torch, transformers = (import_or_skip(package) for package in ("torch", "transformers"))
    from measure.trace.build import make_config

    with torch.device("meta"):
        model: Any = transformers.AutoModelForCausalLM.from_config(make_config(scenario))
    path = next(path for path, _ in model.named_modules() if path.endswith(".experts"))
    mixture = model.get_submodule(path.removesuffix(".experts"))
    kinds = [leaf_kind(type(each).__name__, scenario.model) for each in (mixture, mixture.experts)]
    assert kinds == ["mixture", "experts"]
    order = [child for child, _ in mixture.named_children() if child in ("gate", "router", "experts")]
    assert (order[0] == "experts") == (scenario.model.architecture in EXPERTS_FIRST)
