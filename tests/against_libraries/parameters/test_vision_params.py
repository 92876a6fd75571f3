"""Parameters of vision-language models against the modules that Transformers builds."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.catalog.models import model_entry
from planner.words import words
from tests.extras import import_or_skip

torch = import_or_skip("torch")
transformers = import_or_skip("transformers")

NAMES = words(
    """
    qwen2-vl-7b qwen2.5-vl-3b qwen2.5-vl-7b qwen3-vl-2b qwen3-vl-4b qwen3-vl-8b qwen3-vl-30b-a3b
    qwen3.5-4b qwen3.5-9b qwen3.5-35b-a3b llava-1.5-7b gemma-3-4b gemma-3-27b paligemma-3b-224
    paligemma2-10b-448 pixtral-12b mistral-small-3.1-24b mistral-small-4-119b mistral-medium-3.5-128b
    ministral-3-3b glm-ocr lightonocr-2-1b paddleocr-vl-0.9b
    """
)


def built(fields: dict[str, Any]) -> Any:
    """The module on meta, with at most three layers of each kind:
    a layer more adds what the one before does.
    """
    for part in (fields.get("text_config", fields), fields["vision_config"]):
        for name in ("num_hidden_layers", "depth"):
            if name in part:
                part[name] = 3
    if "deepstack_visual_indexes" in fields["vision_config"]:
        fields["vision_config"]["deepstack_visual_indexes"] = [0, 1, 2]
    config = transformers.AutoConfig.for_model(**fields)
    with torch.device("meta"):
        return transformers.AutoModelForImageTextToText.from_config(config)


def copied(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields with sections of their own."""
    return {name: dict(value) if isinstance(value, dict) else value for name, value in fields.items()}


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_of_the_modules(name: str) -> None:
    """All of them together, and those of tower and projector."""
    fields = copied(model_entry(name).config_fields())
    model = built(fields)
    spec = model_from_config(fields, name)
    own = {id(tensor): tensor.numel() for tensor in model.parameters()}
    assert spec.param_count == sum(own.values())
    assert spec.vision is not None
    parts = ("visual", "vision_tower", "multi_modal_projector", "vision_encoder")
    parts += ("vision_projection", "projector")
    assert spec.vision.param_count == sum(
        tensor.numel()
        for path, tensor in model.named_parameters()
        if any(f".{part}." in f".{path}" for part in parts)
    )


@pytest.mark.parametrize("name", NAMES)
def test_matrices_are_those_that_peft_finds(name: str) -> None:
    """Names and shapes of every linear layer of tower and projector, by the last part of their names."""
    fields = copied(model_entry(name).config_fields())
    model = built(fields)
    spec = model_from_config(fields, name)
    assert spec.vision is not None
    ours = {
        (each.name, each.in_features, each.out_features)
        for block, _ in spec.vision.blocks()
        for each in block.linears
        if each.kind == "linear"
    }
    theirs = {
        (path.rpartition(".")[2], module.in_features, module.out_features)
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and ("visual" in path or "vision_" in path or "projector" in path)
    }
    assert ours == theirs
