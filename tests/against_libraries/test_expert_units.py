"""FSDP2 beside experts that are divided over GPUs: what the program gathers, copies, gives back and reduces,
and the shards and states that a process has, are those of real FSDP2 on a group of fake processes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from expert_units import CASES, CONFIG, GPUS

from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.step import step_of
from tests.extras import import_or_skip, printed_by
from tests.jobs import job_by

Rows = list[tuple[str, int]]
BF16, FP32 = 2, 4


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """What real FSDP2 does in one step, by the name of the case."""
    for package in ("torch", "transformers"):
        import_or_skip(package)
    script = Path(__file__).with_name("expert_units.py")
    answer: dict[str, Any] = printed_by(script)
    return answer


def job(name: str, folder: Path) -> Job:
    """The same job for the program."""
    n_experts, experts, checkpoints = CASES[name]
    config = folder / "config.json"
    fields = {**CONFIG, "num_experts": n_experts, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    config.write_text(json.dumps(fields))
    flags = {
        "model": str(config), "method": "full", "gpu": "a100-80gb", "gpus": GPUS, "seq": 16, "batch": 1,
        "expert_parallel": experts, "gradient_checkpointing": checkpoints, "checkpoint_policy": "full",
        "checkpoint_reentrant": False,
    }  # fmt: skip
    return job_by(flags)


def rows_of(job: Job) -> Rows:
    """What the second micro-step does: elements gathered, copied, freed, and of gradients reduced.

    Parameters that are copied, or given back, together are one row.
    """
    stream, values, phase = step_of(job), unit_values(job), ""
    begins, found = dict(stream.phases), list[tuple[str, int]]()
    for index, event in enumerate(stream.events):
        phase = begins.get(index, phase)
        slot = event if event >= 0 else ~event
        part, _, op = stream.place(slot)
        if part != "fsdp" or phase not in ("forward_2", "loss_2", "backward_2"):
            continue
        n_bytes = round(float(stream.unit_bytes[slot] * values[Unit(stream.units[slot])]))
        if op == "unsharded parameter":
            what = "copy" if event >= 0 else "free"
            before = found.pop()[1] if found and found[-1][0] == what else 0
            found.append((what, before + n_bytes // BF16))
        elif op == "all_gather_output" and event >= 0:
            found.append(("gather", n_bytes // BF16))
        elif op == "reduce_scatter_input" and event >= 0:
            found.append(("reduce", n_bytes // FP32))
    return found


@pytest.mark.real
@pytest.mark.parametrize("name", CASES)
def test_experts_are_gathered_when_real_ones_are(name: str, real: dict[str, Any], tmp_path: Path) -> None:
    """Order and sizes."""
    assert rows_of(job(name, tmp_path)) == joined(real[name]["rows"])


def joined(rows: list[list[Any]]) -> Rows:
    """Neighbours of one kind as one row."""
    found: Rows = []
    for what, elements in rows:
        if found and found[-1][0] == what and what in ("copy", "free"):
            found[-1] = what, found[-1][1] + elements
        else:
            found.append((what, elements))
    return found


@pytest.mark.real
@pytest.mark.parametrize("name", CASES)
def test_a_process_has_the_shards_that_fsdp_gives_it(name: str, real: dict[str, Any], tmp_path: Path) -> None:
    """Weights in fp32, and two states of each of their elements."""
    stream = step_of(job(name, tmp_path))
    weights, states = [], 0.0
    for slot, n_bytes in enumerate(stream.unit_bytes):
        place = stream.place(slot)
        if place[2] == "shard":
            weights.append(round(n_bytes) // FP32)
        states += n_bytes * (place[2] == "state")
    assert sorted(weights) == real[name]["shards"]
    assert states == 2 * FP32 * sum(weights)
