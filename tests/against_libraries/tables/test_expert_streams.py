"""One GPU of several that divide the experts of a mixture:
the step program asks for memory request by request as torchtitan's modules do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from matrix.cells import Cell, scenario_of

from planner.domain.recipes.parallel import Parallel
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import job_of
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.report.trace.requests import differences, ignored_sizes, of_program, of_trace
from tests.extras import import_or_skip

MixtureCode = Literal["torchtitan-2026", "torchtitan-2025"]
LATER = ("forward_2", "loss_2", "backward_2")


def one_gpu(
    model: str, experts: int, batch: int, policy: str, code: MixtureCode = "torchtitan-2025"
) -> Scenario:
    """A job in bf16 without autocast, as layers run under FSDP2."""
    alone = scenario_of(Cell(0, "small", model, "full", policy != "none", "sdpa", batch, 512))
    numerics = replace(alone.recipe.numerics, load_dtype="bf16", precision="bf16")
    recipe = replace(alone.recipe, numerics=numerics, parallel=Parallel(experts=experts))
    if policy == "selective-op":
        recipe = replace(recipe, checkpoint_policy="selective-op", checkpoint_reentrant=False)
    return replace(
        alone,
        recipe=recipe,
        hardware=replace(alone.hardware, gpus_per_node=experts),
        stack=replace(alone.stack, mixture_code=code, trainable_fp32=False),
    )


@pytest.mark.parametrize(
    ("model", "experts", "batch", "policy"),
    [
        ("qwen3-30b-a3b", 2, 1, "none"),
        ("deepseek-v3", 4, 4, "full"),
        ("qwen3-30b-a3b", 4, 4, "selective-op"),
        pytest.param("qwen3-30b-a3b", 1, 4, "full", marks=pytest.mark.slow),
        pytest.param("deepseek-v3", 4, 4, "selective-op", marks=pytest.mark.slow),
    ],
)
def test_rows_are_sent_to_experts_and_back(model: str, experts: int, batch: int, policy: str) -> None:
    """Forward, loss and backward of one process, with what it sends and receives."""
    import_or_skip("torch")
    from mixture_trace import trace_mixture

    scenario = one_gpu(model, experts, batch, policy)
    job = job_of(scenario, Coefficients())
    # A few numbers for each row, such as which expert it is for, are not counted.
    values = unit_values(job)
    top_k = max(group.block.mlp.top_k for group in scenario.model.groups)
    rows = (top_k * values[Unit.TOKENS], values[Unit.ARRIVED_ROWS], values[Unit.EXPERT_ROWS])
    ignored = ignored_sizes(scenario) | {n_bytes * int(count) for n_bytes in (1, 2, 4, 8) for count in rows}
    program = of_program(job, ignored, LATER)
    assert ("all_to_all_single" in {each.op for each in program}) == (experts > 1)
    assert differences(program, of_trace(trace_mixture(scenario), ignored, LATER)) == []


@pytest.mark.parametrize(
    ("model", "batch", "policy"),
    [
        ("qwen3-30b-a3b", 1, "none"),
        ("qwen3-30b-a3b", 4, "selective-op"),
        ("deepseek-v3", 4, "full"),
    ],
)
def test_rows_without_padding(model: str, batch: int, policy: str) -> None:
    """The mixture of torchtitan 0.3.0 on GPUs that each have all experts."""
    import_or_skip("torch")
    from mixture_trace import Unpadded, trace_mixture

    scenario = one_gpu(model, 1, batch, policy, "torchtitan-2026")
    job = job_of(scenario, Coefficients())
    values = unit_values(job)
    rows = values[Unit.EXPERT_ROWS]
    assert rows == values[Unit.ARRIVED_ROWS]
    ignored = ignored_sizes(scenario) | {n_bytes * int(rows) for n_bytes in (1, 2, 4, 8)}
    program = of_program(job, ignored, LATER)
    assert differences(program, of_trace(trace_mixture(scenario, Unpadded), ignored, LATER)) == []
