"""FSDP1 with layers or mixtures of experts as units, and adapters inside of or beside them:
the program gathers, gives back and reduces what real modules do.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fsdp_units import CONFIG, LORA

from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.step import step_of
from tests.extras import import_or_skip, printed_by
from tests.files import written
from tests.jobs import job_by

Rows = list[tuple[str, int]]
FP32, GPUS = 4, 2
_LORA = {"method": "lora", "lora_rank": 4, "lora_targets": list(LORA)}
_PLAIN = {"gradient_checkpointing": True, "checkpoint_reentrant": False}
_REENTRANT = {"gradient_checkpointing": True, "checkpoint_reentrant": True}
_LAYERS = {"switches": ["fsdp_units=layer"]}
RECIPES: dict[str, dict[str, object]] = {
    "full": {"gradient_checkpointing": False},
    "full checkpoints": {**_PLAIN},
    "lora reentrant": {**_LORA, **_REENTRANT},
    "lora of layers": {**_LORA, **_LAYERS, "gradient_checkpointing": False},
    "lora of layers checkpoints": {**_LORA, **_LAYERS, **_PLAIN},
    "lora of layers reentrant": {**_LORA, **_LAYERS, **_REENTRANT},
}
BASE = {
    "method": "full", "gpu": "a100-80gb", "gpus": GPUS, "sharding": "fsdp1", "seq": 8, "batch": 1,
    "precision": "fp32", "load_dtype": "fp32", "attention": "sdpa", "stack": "hf-trainer@5",
    "switches": ["fsdp_units=feed_forward"],
}  # fmt: skip
SAID = {"_full_param_padded": "gather", "new_sharded_grad": "reduce"}


@pytest.fixture(scope="module")
def real() -> dict[str, Rows]:
    """What real FSDP1 does in one step, by the name of the case."""
    for package in ("torch", "transformers", "peft"):
        import_or_skip(package)
    script = Path(__file__).with_name("fsdp_units.py")
    return {name: [(what, n) for what, n in rows] for name, rows in printed_by(script).items()}


def rows_of(job: Job) -> Rows:
    """The same of the program's second micro-step: elements gathered, freed, and of gradients reduced."""
    stream, values, phase, found = step_of(job), unit_values(job), "", []
    begins = dict(stream.phases)
    for index, event in enumerate(stream.events):
        phase = begins.get(index, phase)
        slot = event if event >= 0 else ~event
        part, _, op = stream.place(slot)
        if part != "fsdp" or not phase.endswith("_2") or op not in SAID:
            continue
        elements = round(float(stream.unit_bytes[slot] * values[Unit(stream.units[slot])])) // FP32
        if op == "new_sharded_grad":
            found += [("reduce", GPUS * elements)] * (event >= 0)
        else:
            found.append(("gather" if event >= 0 else "free", elements))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_units_are_gathered_when_real_ones_are(name: str, real: dict[str, Rows], tmp_path: Path) -> None:
    """Order and sizes; each matrix of an adapter is a unit, too."""
    config = written(tmp_path, {**CONFIG, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}, "config.json")
    flags = {**BASE, **RECIPES[name], "model": str(config)}
    found = rows_of(job_by(flags))
    assert found == real[name]
