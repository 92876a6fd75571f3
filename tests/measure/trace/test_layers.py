"""Which few layers of a model stand for all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from measure.trace import layers
from measure.trace.build import configuration_of
from measure.trace.foreign import described_by_modules
from planner.errors import UnknownArchitectureError
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from tests.against_libraries.scenarios import GROUPED, SIZES

TINY: dict[str, Any] = {"model_type": "nemotron", **SIZES, **GROUPED, "num_hidden_layers": 8}


def test_layers_that_another_depth_would_order_otherwise_are_not_cut(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A prefix of the layers stands for all only if fewer layers make the same first ones;
    else every layer is traced.
    """
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    case = resolve(
        from_flags({"model": str(path), "method": "lora", "seq": 32, "gpu": "4090"}),
        reader=lambda fields, _: (
            described_by_modules(dict(fields), UnknownArchitectureError("tiny", "nemotron")).model
        ),
    )
    config = configuration_of(TINY)
    assert layers.layer_pattern(case, config).periods == TINY["num_hidden_layers"]
    shorten = layers.shortened

    def otherwise(config: Any, n_layers: int) -> Any:
        short = shorten(config, n_layers)
        short.intermediate_size *= 2
        return short

    monkeypatch.setattr(layers, "shortened", otherwise)
    assert layers.layer_pattern(case, config).periods == 0
