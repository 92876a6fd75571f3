"""A Llama of two narrow layers, for tests that need a whole model."""

from __future__ import annotations

from typing import Any

from planner.domain.scenario import Scenario
from tests.against_libraries.scenarios import GROUPED, SIZES, Setup, scenario

LLAMA: dict[str, Any] = {"model_type": "llama", **SIZES, **GROUPED, "num_hidden_layers": 2}
PLAIN = Setup()


def llama(setup: Setup = PLAIN) -> tuple[Scenario, Any]:
    """A job, and the configuration object of its model, which no catalog has."""
    import transformers

    config: Any = transformers.AutoConfig.for_model(**LLAMA)
    config._attn_implementation, config.use_cache = setup.attention, False
    return scenario(LLAMA, setup), config
