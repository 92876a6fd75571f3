"""Which GPU has which layers: the map of ``device_map="auto"`` beside the library's, on meta modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.integrations import accelerate as spread
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer

from measure.trace.build import make_config
from planner.anatomy.device_map import Share, shares_of
from planner.domain.scenario import Scenario
from planner.words import words
from tests.jobs import resolved

# Of several families, tied and not, with a table that outweighs the layers, and with layers of two sizes.
MODELS = words(
    """
    llama-3.1-8b llama-3.2-1b llama-3.1-70b qwen2.5-0.5b qwen2.5-7b qwen3-4b qwen3-30b-a3b mistral-7b-v0.3
    gemma-2-9b phi-4 tinyllama-1.1b smollm3-3b
    """
)


def scenario_of(model: str, method: str, gpus: int) -> Scenario:
    """A job whose layers are spread over so many cards of 141 GB."""
    values: dict[str, object] = {
        "model": model,
        "method": method,
        "gpu": f"h200-sxm:{gpus}",
        "seq": 128,
        "batch": 1,
    }
    values |= {"device_map": "auto", "stack": "hf-trainer@5", "load_dtype": "bf16"}
    return resolved(values)


def of_library(scenario: Scenario, quantized: bool) -> dict[str, int]:
    """GPU by module, as from_pretrained finds it."""
    with torch.device("meta"):
        build: Any = transformers.AutoModelForCausalLM.from_config
        model = build(make_config(scenario), dtype=torch.bfloat16)
    quantizer: Any = None
    if quantized:
        config: Any = transformers.BitsAndBytesConfig(load_in_4bit=True)  # type: ignore[no-untyped-call]
        quantizer = Bnb4BitHfQuantizer(config)
        quantizer._process_model_before_weight_loading(model, device_map=None)
    visible = scenario.hardware.gpu.visible_memory_bytes
    limits = dict.fromkeys(range(scenario.hardware.gpus_per_node), visible)
    found: dict[str, int] = spread._get_device_map(model, "auto", limits, quantizer)
    return found


def shares_in(found: dict[str, int], n_gpus: int, n_layers: int) -> list[Share]:
    """The same as shares."""
    base = "model.layers"

    def gpu_of(name: str) -> int:
        while name and name not in found:
            name = name.rpartition(".")[0]
        return found[name]

    layers = [gpu_of(f"{base}.{number}") for number in range(n_layers)]
    ends = {
        "table": "model.embed_tokens",
        "norm": "model.norm",
        "head": "lm_head",
    }
    made = []
    for gpu in range(n_gpus):
        own = [number for number, place in enumerate(layers) if place == gpu]
        kept: Any = tuple(end for end, name in ends.items() if gpu_of(name) == gpu)
        made.append(Share((own[0], own[-1] + 1) if own else (0, 0), kept))
    return made


@pytest.mark.parametrize("method", ["lora", "qlora"])
@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize("model", MODELS)
def test_layers_are_where_transformers_puts_them(model: str, gpus: int, method: str) -> None:
    """To the layer, with the room that the installed version leaves."""
    scenario = scenario_of(model, method, gpus)
    found = of_library(scenario, quantized=method == "qlora")
    shares = shares_of(scenario)
    assert shares is not None
    assert list(shares) == shares_in(found, gpus, scenario.model.n_layers)
