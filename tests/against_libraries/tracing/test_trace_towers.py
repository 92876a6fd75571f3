"""The trace of a model that sees, on text alone: its tower is loaded where the stack loads it, and parts of
it are frozen where the recipe freezes them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

import torch
from fsdp_towers import CONFIG

from measure.recipe.modules import part_of
from measure.trace.build import build_on_meta, make_config
from planner.domain.scenario import Scenario
from tests.files import written
from tests.jobs import resolved

FLAGS = {"method": "full", "gpu": "h100-sxm", "seq": 16, "batch": 1}


def scenario(model: str, **more: object) -> Scenario:
    """A small job."""
    return resolved({**FLAGS, "model": model, **more})


@pytest.mark.parametrize(("stack", "sees"), [("hf-trainer@5", False), ("llama-factory", True)])
def test_a_text_part_is_made_alone_where_the_stack_loads_it_so(stack: str, *, sees: bool) -> None:
    """``AutoModelForCausalLM`` of Qwen3.5 has no tower, which LLaMA-Factory loads."""
    case = scenario("qwen3.5-0.8b", stack=stack)
    names = [name for name, _ in build_on_meta(case, make_config(case)).model.named_parameters()]
    assert any(".visual." in f".{name}" for name in names) == sees


@pytest.mark.parametrize("frozen", ["vision_tower", "projector", "vision_tower;projector", "language_model"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_what_a_recipe_freezes_is_frozen(tmp_path: Path, method: str, frozen: str) -> None:
    """As many parameters of each part are trained, or get adapters, as the program asks for; fp32 is for
    trained ones alone.
    """
    path = written(tmp_path, CONFIG, "config.json")
    more = {"adapter_dtype": "fp32", "lora_targets": "all-linear"} if method == "lora" else {}
    case = scenario(str(path), method=method, freeze=frozen, stack="llama-factory", **more)
    named = dict(build_on_meta(case, make_config(case)).model.named_parameters())
    trained = {name: tensor for name, tensor in named.items() if tensor.requires_grad}
    assert trained
    assert not {part_of(name) for name in trained} & {*frozen.split(";")}
    assert len({part_of(name) for name in trained}) == 3 - len(frozen.split(";"))
    wide = {name for name, tensor in named.items() if tensor.dtype == torch.float32}
    assert wide == {*trained}
