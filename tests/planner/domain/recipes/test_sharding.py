"""What each way of spreading state divides, seen from the jobs that are made of it."""

from __future__ import annotations

import json
import pickle

import pytest

from planner.domain.recipes.sharding import SHARDING_NAMES, sharding_named
from planner.domain.uncertainty.coefficients import Coefficients
from planner.predicting import estimate
from planner.program.job import job_of
from planner.report.prediction.subject import Subject
from planner.report.prediction.to_json import to_json
from tests.jobs import resolved

GPUS, NODES = 4, 2
SAID = {
    "model": "llama-2-7b",
    "method": "full",
    "gpu": f"h100-sxm:{GPUS}",
    "nodes": NODES,
    "seq": 512,
    "grad_accum": 4,
}

# Shards of weights, of gradients and of optimizer states on two nodes of four cards.  Source: ZeRO (arXiv
# 1910.02054) section 5; torch distributed/fsdp (SHARD_GRAD_OP keeps weights, HYBRID_SHARD shards inside a
# node); megatron-core optimizer/distrib_optimizer.py (buffers of gradients are whole).
SHARDS = {
    "none": (1, 1, 1),
    "ddp": (1, 1, 1),
    "zero0": (1, 1, 1),
    "zero1": (1, 1, 8),
    "zero2": (1, 8, 8),
    "zero3": (8, 8, 8),
    "fsdp": (8, 8, 8),
    "fsdp1": (8, 8, 8),
    "fsdp-grad-op": (1, 8, 8),
    "fsdp1-grad-op": (1, 8, 8),
    "hsdp": (4, 4, 4),
    "hsdp1": (4, 4, 4),
    "distributed-optimizer": (1, 1, 8),
}


@pytest.mark.parametrize("name", SHARDING_NAMES)
def test_what_is_divided_over_how_many_cards(name: str) -> None:
    """Every name that flags take, over all cards or those of a node."""
    job = job_of(resolved({**SAID, "sharding": name}, force=True), Coefficients())
    sharding = job.recipe.sharding
    gradient_shards = sharding.shards(job.hardware) if sharding.divides_gradients else 1
    assert (job.weight_shards, gradient_shards, job.optimizer_shards) == SHARDS[name]


@pytest.mark.parametrize("name", SHARDING_NAMES)
def test_a_sharding_is_its_name_outside(name: str) -> None:
    """JSON and sentences have the name, and a copy of the value is the value."""
    scenario = resolved({**SAID, "sharding": name}, force=True)
    sharding = scenario.recipe.sharding
    assert f"{sharding}" == name
    assert pickle.loads(pickle.dumps(sharding)) == sharding == sharding_named(name)
    document = json.loads(to_json(Subject(scenario, estimate(scenario))))
    assert document["scenario"]["recipe"]["sharding"] == name


def test_engines_and_stages() -> None:
    """Stages belong to DeepSpeed alone, and its stages below the third share one code."""
    stages = {name: sharding_named(name).zero_stage for name in SHARDING_NAMES}
    assert {name: stage for name, stage in stages.items() if stage} == {"zero1": 1, "zero2": 2, "zero3": 3}
    assert [name for name in SHARDING_NAMES if sharding_named(name).is_zero12] == ["zero1", "zero2"]
    gathering = [name for name in SHARDING_NAMES if sharding_named(name).gathers_weights]
    assert gathering == ["zero3", "fsdp", "fsdp1", "fsdp-grad-op", "fsdp1-grad-op", "hsdp", "hsdp1"]
    assert not any(sharding_named(name).reduces_each_micro_step for name in ("none", "ddp", "zero0", "zero1"))


def test_kinds_of_fsdp_are_told_apart() -> None:
    """FSDP1 has flat parameters; FSDP2 gives blocks back after their pass unless weights stay whole."""
    kinds = {name: sharding_named(name) for name in SHARDING_NAMES}
    assert {name for name, each in kinds.items() if each.is_fsdp1} == {"fsdp1", "fsdp1-grad-op", "hsdp1"}
    assert {name for name, each in kinds.items() if each.frees_blocks} == {"fsdp", "hsdp"}
