"""One GPU of several that divide a model:
the step program asks for memory request by request as the divided modules do.

``features`` is the plan of Transformers.  ``tokens`` is sequence parallelism as torchtitan has it, over the
modules of Transformers; there the ends differ, because torchtitan's loss reads divided logits and its tables
are no DTensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from matrix.cells import Cell, scenario_of

from planner.domain.recipes.parallel import Parallel
from planner.domain.scenario import Scenario
from planner.domain.stack_values import ModelParallel
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError
from planner.program.job import job_of
from planner.report.trace.requests import Request, differences, ignored_sizes, of_program, of_trace
from tests.extras import import_or_skip

LATER = ("forward_2", "loss_2", "backward_2")


def both(
    cell: Cell, size: int, way: ModelParallel, phases: Sequence[str]
) -> tuple[list[Request], list[Request]]:
    """Requests of the program and of the trace on one of ``size`` GPUs."""
    from parallel_trace import trace_divided

    scenario = _divided(scenario_of(cell), size, way)
    ignored = ignored_sizes(scenario)
    trace = trace_divided(scenario, size)
    return of_program(job_of(scenario, Coefficients()), ignored, phases), of_trace(trace, ignored, phases)


def _divided(scenario: Scenario, size: int, way: ModelParallel) -> Scenario:
    return replace(
        scenario,
        recipe=replace(scenario.recipe, parallel=Parallel(tensor=size)),
        hardware=replace(scenario.hardware, gpus_per_node=size),
        stack=replace(scenario.stack, model_parallel=way),
    )


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("cell", "size"),
    [
        (Cell(0, "small", "llama-3.1-8b", "full", False, "sdpa", 1, 512), 2),
        (Cell(0, "small", "qwen3-8b", "full", True, "sdpa", 4, 512), 2),
        (Cell(0, "small", "mistral-7b-v0.3", "full", True, "eager", 1, 512), 2),
        (Cell(0, "small", "llama-2-7b", "full", False, "sdpa", 4, 512), 4),
    ],
    ids=lambda value: f"{value.model}-{value.batch}" if isinstance(value, Cell) else str(value),
)
def test_matrices_divided_by_transformers(cell: Cell, size: int) -> None:
    """Forward, loss, backward and the optimizer's step of one process."""
    import_or_skip("torch")
    program, trace = both(cell, size, "features", (*LATER, "optimizer_step"))
    assert differences(program, trace) == []


@pytest.mark.parametrize("batch", [1, 4])
def test_the_stream_divided_over_tokens(batch: int) -> None:
    """All layers, with what is gathered and scattered around their two parts."""
    import_or_skip("torch")
    cell = Cell(0, "small", "llama-3.1-8b", "full", False, "sdpa", batch, 512)
    sides = both(cell, 2, "tokens", ("forward_2", "backward_2"))
    program, trace = (_inside(requests) for requests in sides)
    assert len(program) > 200
    assert differences(program, trace) == []


@pytest.mark.parametrize(
    ("batch", "checkpointing"), [(1, True), pytest.param(4, False, marks=pytest.mark.slow)]
)
def test_heads_exchanged_for_tokens(batch: int, checkpointing: bool) -> None:
    """Ulysses over two GPUs: all layers, with what is sent and received around attention."""
    import_or_skip("torch")
    from parallel_trace import exchanging_heads

    cell = Cell(0, "small", "llama-3.1-8b", "full", checkpointing, "flash2", batch, 512)
    with exchanging_heads(2):
        program, trace = _of_divided_sequences(cell, "exchanged_heads")
    assert sum("all_to_all" in each.op for each in program) > 0
    assert differences(program, trace) == []


@pytest.mark.parametrize(
    ("batch", "checkpointing"), [(1, True), pytest.param(4, False, marks=pytest.mark.slow)]
)
def test_keys_gathered_for_flex_attention(batch: int, checkpointing: bool) -> None:
    """torchtitan over two GPUs: all layers, with the keys and values of the whole sequence."""
    import_or_skip("torch")
    from parallel_trace import gathering_keys

    cell = Cell(0, "small", "llama-3.1-8b", "full", checkpointing, "flash2", batch, 512)
    with gathering_keys(2):
        program, trace = _of_divided_sequences(cell, "tokens", attention="flex")
    assert sum("of keys" in each.op for each in program) > 0
    assert differences(program, trace) == []


def _of_divided_sequences(
    cell: Cell, way: ModelParallel, **changes: str
) -> tuple[list[Request], list[Request]]:
    """Layers of one of two GPUs: the program's, and those of the dry run of this GPU's tokens alone."""
    from measure.trace.traced_job import trace_events

    alone = scenario_of(cell)
    whole = replace(alone.recipe, batch=replace(alone.recipe.batch, seq_len=1_024, tokens_per_sample=1_024))
    shared = replace(
        alone,
        recipe=replace(whole, parallel=Parallel(context=2), **changes),
        hardware=replace(alone.hardware, gpus_per_node=2),
        stack=replace(alone.stack, model_parallel=way),
    )
    phases, ignored = ("forward_2", "backward_2"), ignored_sizes(alone)
    trace = _inside(of_trace(trace_events(alone), ignored, phases))
    return _inside(of_program(job_of(shared, Coefficients()), ignored, phases)), trace


def test_the_dry_run_says_that_it_does_not_divide() -> None:
    """It would trace the whole model on each GPU."""
    import_or_skip("torch")
    from measure.trace.traced_job import trace_events

    cell = Cell(0, "small", "llama-3.1-8b", "full", False, "sdpa", 1, 512)
    with pytest.raises(NotModelledError, match="share a batch"):
        trace_events(_divided(scenario_of(cell), 2, "features"))


def _inside(requests: list[Request]) -> list[Request]:
    """From the first norm to the last gradient of a layer:
    the embeddings around them are other modules there.
    """
    layers = [number for number, each in enumerate(requests) if "layer" in f"{each.part} {each.module}"]
    return requests[layers[0] : layers[-1]]
