"""The model of a job without memory: what is made, and in which order it comes to the card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.modeling_layers import GradientCheckpointingLayer

from measure.trace.build import (
    build_on_meta,
    configuration_of,
    make_config,
    materialize,
    prediction_answers,
    refuse_older_layers,
)
from measure.trace.tracer import Recorder
from planner.errors import NotModelledError
from tests.against_libraries.scenarios import Setup
from tests.jobs import resolved
from tests.measure.trace.tiny import LLAMA, llama

LORA = Setup(rank=4, targets=("attention",))


def test_code_beside_a_checkpoint_is_not_asked_for() -> None:
    """The fields that name it are left out; the others are there."""
    config = configuration_of({**LLAMA, "auto_map": {"AutoConfig": "evil--x.Y"}})
    assert not hasattr(config, "auto_map")
    assert config.hidden_size == LLAMA["hidden_size"]


def test_models_that_transformers_does_not_ship_are_refused() -> None:
    """The sentence points to the prediction, where there is one."""
    case = resolved({"model": "qwen2.5-0.5b", "method": "lora", "seq": 32, "gpu": "4090"})
    assert make_config(case).use_cache is False
    remote = replace(case, model=replace(case.model, remote_code=True))
    with pytest.raises(NotModelledError, match=r"its code ships with the checkpoint .*plan --model"):
        make_config(remote)
    assert prediction_answers(replace(case.model, architecture="nosuch")) == ""


def test_layers_of_text_are_found_beside_a_tower_with_as_many() -> None:
    """InternVL is no causal language model by its name, and its tower has as many layers."""
    case = resolved({"model": "internvl3-1b", "method": "lora", "seq": 32, "gpu": "4090"})
    built = build_on_meta(case, make_config(case))
    assert built.layer_list.endswith("language_model.layers")
    assert built.n_layers == 24


@pytest.mark.parametrize("attention", ["xformers", "flex"])
def test_kernels_that_nothing_stands_in_for_are_refused(attention: str) -> None:
    """The sentence names those that can be traced."""
    case = resolved({"model": "qwen2.5-0.5b", "method": "lora", "seq": 32, "gpu": "4090"})
    case = replace(case, recipe=replace(case.recipe, attention=attention))  # type: ignore[arg-type]
    with pytest.raises(NotModelledError, match=f"'{attention}' cannot be traced: --attention"):
        make_config(case)


def test_only_adapters_of_a_lora_model_are_trained() -> None:
    """Two matrices of rank 4 for each of four projections in two layers, and no memory anywhere."""
    built = build_on_meta(*llama(LORA))
    trained = {name: each for name, each in built.model.named_parameters() if each.requires_grad}
    assert len(trained) == 2 * 4 * 2
    assert all(".lora_" in name for name in trained)
    assert all(each.is_meta for each in built.model.parameters())
    assert built.model.training
    assert (built.layer_list, built.n_layers) == ("base_model.model.model.layers", 2)
    assert built.reference is None


def test_a_base_is_loaded_before_its_adapters_and_a_tied_table_once() -> None:
    """Bytes are those of the parameters, 2 for each of the base and 4 for each of an adapter."""
    case, config = llama(LORA)
    config.tie_word_embeddings = True
    model, recorder = build_on_meta(case, config).model, Recorder()
    sizes = {name: each.numel() for name, each in model.named_parameters()}
    adapters = sum(count for name, count in sizes.items() if ".lora_" in name)
    with FakeTensorMode():
        materialize(model, recorder)
    loads = [each for each in recorder.trace.records if each.alloc]
    stages = [each.place.stage for each in loads]
    assert stages == sorted(stages, key=("load", "adapters").index)
    weights = [each.block for each in loads if each.block.role == "weights"]
    assert sum(each.block.n_bytes for each in loads if each.block.role == "adapters") == 4 * adapters
    # Rotary frequencies are buffers in fp32: of half a head's width, and a copy of them.
    buffers = 2 * 4 * (256 // 8 // 2)
    assert sum(block.n_bytes for block in weights) == 2 * (sum(sizes.values()) - adapters) + buffers
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


class Layer(GradientCheckpointingLayer):
    """One that checkpoints itself."""


def test_layers_that_do_not_checkpoint_themselves_are_refused() -> None:
    """In older code the model around them does it."""
    model: Any = nn.Module()
    model.layers = nn.ModuleList([Layer()])
    refuse_older_layers(model, "layers")
    model.layers = nn.ModuleList([nn.Linear(1, 1)])
    with pytest.raises(NotModelledError, match=r"class Linear .*--checkpoint-every 1"):
        refuse_older_layers(model, "layers")
