"""Small models traced on fake tensors and run for real on the CPU, with the same code for the step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from scenarios import GPT2_SIZES, GROUPED, NO_DROPOUT, SIZES, Setup, scenario, with_layers
from tiny_families import tiny_fields
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from measure.trace.build import Built, build_on_meta, materialize
from measure.trace.cuda.shims import Situation, shims
from measure.trace.record import Trace
from measure.trace.tracer import Recorder
from measure.trace.trainer_step import run_step
from planner.domain.recipes.recipe import Batch
from planner.domain.scenario import Scenario

# Two layers have a first and a last one, which is all that these comparisons need.
SHALLOW = {**SIZES, "num_hidden_layers": 2}
_DELTA = {f"linear_{name}_head_dim": 32 for name in ("key", "value")}
_DELTA |= {"linear_num_key_heads": 4, "linear_num_value_heads": 8, "head_dim": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    # Layers of the gated delta rule alone.
    "linear": {"model_type": "qwen3_5_text", **SHALLOW, **GROUPED, **_DELTA, "full_attention_interval": 9},
    "llama": {"model_type": "llama", **SHALLOW, **GROUPED},
    "llama-mha": {"model_type": "llama", **SHALLOW},
    "mistral": {"model_type": "mistral", **SHALLOW, **GROUPED, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", **SHALLOW, **GROUPED},
    "qwen3": {"model_type": "qwen3", **SHALLOW, **GROUPED, "head_dim": 32},
    "gpt2": {"model_type": "gpt2", **GPT2_SIZES, "n_layer": 2, **NO_DROPOUT},
    "gpt2-dropout": {"model_type": "gpt2", **GPT2_SIZES, "n_layer": 2},
    "gpt_neox": {"model_type": "gpt_neox", **SHALLOW},
    "phi3": {"model_type": "phi3", **SHALLOW, **GROUPED, "pad_token_id": 0},
    "gemma": {"model_type": "gemma", **SHALLOW, **GROUPED, "head_dim": 32},
}


@dataclass(frozen=True)
class Small:
    """Batch and length of these runs."""

    batch: int = 2
    length: int = 32


def config_fields(name: str, layers: int | None = None) -> dict[str, Any]:
    """The ``config.json`` of a small model, or of a catalog model made tiny;
    its layer count can be changed.
    """
    config = CONFIGS[name] if name in CONFIGS else tiny_fields(name)
    return dict(config) if layers is None else with_layers(config, layers)


def small_scenario(name: str, setup: Setup, *, layers: int | None = None, small: Small = Small()) -> Scenario:
    """The scenario of a small model; its layer count can be changed."""
    base = scenario(config_fields(name, layers), setup)
    batch = Batch(small.batch, 1, small.length, "packed", small.length)
    return replace(base, recipe=replace(base.recipe, batch=batch))


def small_config(name: str, case: Scenario, layers: int | None = None) -> Any:
    """The configuration object of a small model, which no catalog has."""
    import transformers

    config = transformers.AutoConfig.for_model(**config_fields(name, layers))
    config._attn_implementation = case.recipe.attention
    config.use_cache = False
    config.get_text_config().use_cache = False
    return config


def built(name: str, case: Scenario, layers: int | None = None) -> Built:
    """The model of a scenario on meta."""
    return build_on_meta(case, small_config(name, case, layers))


def fake_trace(name: str, case: Scenario, *, cuda: bool = False, padded: bool = False) -> Trace:
    """The step on fake tensors."""
    recorder = Recorder(keep_operators=True)
    made = built(name, case)
    with (
        FakeTensorMode(),
        shims(Situation(padded, recorder), cuda=cuda),
        recorder.modules.watching([made.model], made.layer_list),
    ):
        materialize(made.model, recorder)
        recorder.trace.operators.clear()
        run_step(made.model, case, recorder)
    return recorder.trace


def real_trace(name: str, case: Scenario) -> Trace:
    """The step on real CPU tensors, with nothing put in the place of anything."""
    recorder = Recorder(keep_operators=True)
    made = built(name, case)
    torch.manual_seed(0)
    with recorder.modules.watching([made.model], made.layer_list):
        materialize(made.model, recorder)
        _fill(made.model)
        recorder.trace.operators.clear()
        run_step(made.model, case, recorder)
    return recorder.trace


def _fill(model: nn.Module) -> None:
    """Small values, so that nothing overflows; ``materialize`` leaves memory as it was."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.normal_(0, 0.02)
            else:
                tensor.zero_()


def peaks(trace: Trace) -> dict[tuple[str, int], int]:
    """Most bytes alive in each pass."""
    live = 0
    most: dict[tuple[str, int], int] = {}
    for record in trace.records:
        live += record.block.n_bytes if record.alloc else -record.block.n_bytes
        key = (record.place.stage, record.place.micro_step)
        most[key] = max(most.get(key, 0), live)
    return most
