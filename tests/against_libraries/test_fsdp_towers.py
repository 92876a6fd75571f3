"""FSDP1 of a model whose tower reads nothing: the program gathers, gives back, reduces and updates what real
modules do.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fsdp_towers import CASES, CONFIG
from test_fsdp_units import BASE, FP32, Rows, rows_of

from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.step import step_of
from tests.extras import import_or_skip, printed_by
from tests.files import written
from tests.jobs import job_by


@pytest.fixture(scope="module")
def real() -> dict[str, Rows]:
    """What real FSDP1 does in one step, by the name of the case."""
    for package in ("torch", "transformers"):
        import_or_skip(package)
    script = Path(__file__).with_name("fsdp_towers.py")
    return {name: [(what, n) for what, n in rows] for name, rows in printed_by(script).items()}


def state_elements(job: Job) -> int:
    """Elements of the first moments that this process has."""
    stream, values = step_of(job), unit_values(job)
    first = {slot for slot in stream.events if slot >= 0 and stream.place(slot)[2] == "state"}
    n_bytes = sum(float(stream.unit_bytes[slot] * values[Unit(stream.units[slot])]) for slot in first)
    return round(n_bytes / FP32 / 2)


@pytest.mark.slow
@pytest.mark.parametrize("units", CASES)
def test_a_tower_at_rest_is_gathered_with_the_root_or_never(
    units: str, real: dict[str, Rows], tmp_path: Path
) -> None:
    """Order and sizes of gathers and reductions, and what the optimizer has states of."""
    config = written(tmp_path, CONFIG, "config.json")
    flags = {
        **BASE, "model": str(config), "gradient_checkpointing": True, "checkpoint_reentrant": False,
        "images_per_sample": 0, "switches": [f"tower_units={units}"],
    }  # fmt: skip
    job = job_by(flags)
    *real_rows, (_, states) = real[units]
    assert rows_of(job) == real_rows
    assert state_elements(job) == pytest.approx(states, abs=2)
