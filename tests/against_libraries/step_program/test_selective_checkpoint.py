"""Selective checkpointing of operators: the trace runs torch's own with torchtitan's policy,
and the program says the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_checkpoint_every import program_bytes, scenario_of

from measure.trace.traced_job import trace_events
from planner.allocator.documents.summary import summarize
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed import replayed
from planner.throughput.flop import products_flop
from planner.throughput.time_inputs import job_of as timed_job_of
from tests.jobs import job_by, typed

MODELS = ("llama-3.1-8b", "gpt-neox-20b", "gemma-2-9b", "qwen2.5-7b")


def selective(model: str, folder: Path, **flags: Any) -> Scenario:
    """A job on a scaled-down model whose layers keep chosen outputs."""
    return scenario_of(model, folder, checkpoint_policy="selective-op", checkpoint_reentrant=False, **flags)


@pytest.mark.every(4)
@pytest.mark.parametrize("method", ["full", "qlora", pytest.param("lora", marks=pytest.mark.slow)])
@pytest.mark.parametrize("model", MODELS)
def test_program_and_trace_agree(model: str, method: str, tmp_path: Path) -> None:
    """The allocated peaks are within 0.5 %.

    Over a packed base the same requests of a smaller job lie in other blocks, which round more of them up.
    """
    scenario = selective(model, tmp_path, method=method, seq=2048 if method == "qlora" else 1024)
    trace = summarize(trace_events(scenario)).allocated_peak_bytes
    assert program_bytes(scenario) == pytest.approx(trace, rel=0.005)


def test_unfused_attention_agrees(tmp_path: Path) -> None:
    """Its batched products are kept too, and nothing else of it."""
    scenario = selective("llama-3.1-8b", tmp_path, method="full", attention="eager")
    trace = summarize(trace_events(scenario)).allocated_peak_bytes
    assert program_bytes(scenario) == pytest.approx(trace, rel=0.005)


def test_bytes_kept_by_a_layer_of_llama() -> None:
    """Input, query, value, gate and last product, attention's output and 4 bytes a head:
    63,616 bytes a token for Llama 3 8B.
    """

    def kept_bytes(seq: int) -> float:
        said = {
            "model": "llama-3.1-8b",
            "method": "full",
            "gpu": "b200",
            "seq": seq,
            "batch": 1,
            "load_dtype": "bf16",
        }
        said |= typed("--precision bf16 --optimizer sgd --gradient-checkpointing --no-checkpoint-reentrant")
        said |= {"checkpoint_policy": "selective-op", "loss": "chunked", "stack": "torchtitan"}
        said |= {"attention": "sdpa"}
        phases = replayed(job_by(said)).phases
        forward = next(each for each in phases if each.phase == "loss")
        return float(forward.terms["saved_activations"])

    assert (kept_bytes(8192) - kept_bytes(4096)) / 4096 / 32 == pytest.approx(63_616, rel=0.01)


def test_the_step_takes_longer_than_without_and_shorter_than_with_all(tmp_path: Path) -> None:
    """Every second product and no attention is computed again."""

    def rebuilt(**flags: Any) -> float:
        scenario = scenario_of("llama-3.1-8b", tmp_path, method="full", checkpoint_reentrant=False, **flags)
        job = timed_job_of(scenario, Coefficients())
        assert job is not None
        return float(products_flop(job, job.micro, "training", ("again",)))

    scenario = scenario_of("llama-3.1-8b", tmp_path, method="full")
    linears, batch = scenario.model.groups[0].block.linears, scenario.recipe.batch
    second = sum(each.in_features * each.out_features for each in linears[1:-1:2])
    flop = 2 * second * scenario.model.groups[0].count * batch.rows * batch.seq_len
    assert rebuilt(checkpoint_policy="selective-op") == flop
    assert 0 == rebuilt(gradient_checkpointing=False) < flop < rebuilt(checkpoint_policy="full")
