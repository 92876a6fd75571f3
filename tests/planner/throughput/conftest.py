"""The model that most tests of time are about."""

from __future__ import annotations

import pytest

from planner.catalog.hf_config import model_from_config
from planner.domain.model import ModelSpec
from tests.planner.throughput.jobs import LLAMA_2_7B


@pytest.fixture(scope="module")
def llama() -> ModelSpec:
    """Llama-2-7B from its shapes."""
    return model_from_config(LLAMA_2_7B, "llama-2-7b")
