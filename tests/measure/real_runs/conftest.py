"""A small model, a warm launcher and a machine without GPUs, for runs on the CPU with the real libraries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from measure.run.assemble import MeasuredRecord
from measure.run.cases.case import RunOptions
from measure.run.launcher import Launcher
from measure.run.readings.environment import collect_environment
from measure.run.readings.machine import Machine
from measure.run.single import prepare, run_prepared
from tests.extras import needs

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
LIBRARIES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes", "psutil")

Measure = Callable[..., MeasuredRecord]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Everything here starts processes that train; what measures needs the measure extra."""
    mark = needs(*LIBRARIES)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)
        if {"measure", "launcher", "machine"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(mark)


@pytest.fixture(scope="package")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The small model's config.json."""
    path = tmp_path_factory.mktemp("small") / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="package")
def machine() -> Machine:
    """This machine as one without GPUs."""
    return Machine(None, (), None, collect_environment(None, ()))


@pytest.fixture(scope="package")
def launcher() -> Iterator[Launcher]:
    """A launcher whose zygote is warm from the second case on."""
    with Launcher() as opened:
        yield opened


@pytest.fixture(scope="package")
def measure(config: str, machine: Machine, launcher: Launcher) -> Measure:
    """``measure(method=..., workload=..., ...)``: run one small case,
    with few steps unless more are asked for.
    """

    def run(*, options: dict[str, Any] | None = None, **values: Any) -> MeasuredRecord:
        said = {"model": config, "method": "lora", "seq": 32, "batch": 2, "gpu": "cpu", **values}
        chosen = {
            "workload": "loop",
            "warmup": 1,
            "steps": 2,
            "max_steps": 2,
            "timeout_s": 240.0,
            **(options or {}),
        }
        return run_prepared(prepare(said, RunOptions(**chosen), machine, force=False), machine, launcher)

    return run
