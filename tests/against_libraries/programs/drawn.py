"""The traced step of a job as a program: Transformers, bitsandbytes and PEFT load the model, and the trace's
own step trains it.  ``drawn.py FLAGS`` reads the flags of the job as JSON, and the model from ``model``.
"""

import json
import sys
from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from measure.recipe.adapters import DTYPES, adapted
from measure.recipe.kbit import prepare_for_kbit, quantization_config
from measure.recipe.trained import checkpoint_activations, freeze
from measure.trace.cuda.recurrent import recurrent_kernels
from measure.trace.trainer_step import run_step
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS
from planner.domain.scenario import Scenario
from tests.jobs import resolved


class Nobody(AbstractContextManager[Any]):
    """In the place of the trace's recorder: the dry run sees what happens by itself."""

    device = "cuda"

    def __exit__(self, *_: object) -> None:
        """Nothing was opened."""

    def enter_stage(self, stage: str, micro_step: int = 0) -> None:
        """Passes are seen from outside."""

    def mark(self, tensor: object, role: str) -> None:
        """So are roles."""

    def close(self) -> None:
        """And the end."""


def loaded(scenario: Scenario) -> Any:
    """The model as a training script has it before its first step."""
    recipe = scenario.recipe
    settings: dict[str, Any] = {
        "dtype": DTYPES[recipe.numerics.load_dtype],
        "attn_implementation": ATTENTION_FACTS[recipe.attention].names[0],
        "device_map": {"": 0},
        "quantization_config": quantization_config(recipe),
    }
    model = AutoModelForCausalLM.from_pretrained("model", **settings)
    model.config.use_cache = False
    model.config.get_text_config().use_cache = False
    model = freeze(model, scenario)
    if recipe.numerics.quantization != "none":
        prepare_for_kbit(model, scenario)
    if recipe.adapter is not None:
        model = adapted(model, recipe, scenario.model)
    model.train()
    checkpoint_activations(model, scenario)
    return model


if __name__ == "__main__":
    job = resolved({**json.loads(sys.argv[1]), "model": "model/config.json"})
    model = loaded(job)
    # The packages of layers without attention, which the trace takes for installed.
    with recurrent_kernels(torch.cuda.get_device_properties(0).multi_processor_count):
        run_step(model, job, Nobody())
