"""One group of a pipeline holds what torch's own schedule holds, over layers of Transformers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from matrix.cells import Cell, scenario_of

from planner.allocator.events import AllocEvent
from planner.anatomy.pipeline_stages import stages_of
from planner.domain.recipes.parallel import Parallel, Schedule
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import Job, job_of
from planner.program.ops.sizes import unit_values
from planner.program.step import step_of
from tests.extras import import_or_skip

_FIRST = ("forward", "loss", "backward")


def pipeline_of(ranks: int, kind: Schedule, microbatches: int) -> Scenario:
    """Eight layers of small widths, without an engine."""
    scenario = scenario_of(Cell(0, "small", "llama-3.1-8b", "full", False, "sdpa", 2, 256))
    (group,) = scenario.model.groups
    recipe = replace(
        scenario.recipe,
        parallel=Parallel(pipeline=ranks, schedule=kind, microbatches=microbatches),
        batch=replace(scenario.recipe.batch, grad_accum=microbatches),
    )
    return replace(
        scenario,
        model=replace(scenario.model, groups=(replace(group, count=8),)),
        recipe=recipe,
        hardware=replace(scenario.hardware, gpus_per_node=ranks),
        stack=replace(scenario.stack, keeps_outputs=False, binds_loss=False),
    )


def program_peak(job: Job) -> int:
    """Most bytes of the program's first round."""
    stream = step_of(job)
    sizes = stream.sizes({unit: float(count) for unit, count in unit_values(job).items()})
    begins, phase, live, peak = dict(stream.phases), "load", 0, 0
    for index, event in enumerate(stream.events):
        phase = begins.get(index, phase)
        live += sizes[event] if event >= 0 else -sizes[~event]
        peak = max(peak, live) if phase in _FIRST else peak
    return peak


def trace_peak(events: Iterable[AllocEvent]) -> int:
    """Most bytes of the trace."""
    sizes: dict[int, int] = {}
    live = peak = 0
    for event in events:
        if event.action == "alloc":
            sizes[event.block] = event.n_bytes
            live += event.n_bytes
        else:
            live -= sizes.pop(event.block, 0)
        peak = max(peak, live)
    return peak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "kind", "microbatches"), [(3, "1f1b", 5), (2, "gpipe", 3), (2, "interleaved", 4)]
)
def test_a_group_holds_what_torchs_schedule_holds(ranks: int, kind: Schedule, microbatches: int) -> None:
    """Weights, buffers for every micro-batch, activations of those under way, gradients: within one per cent.

    Rotary tables and numbers of tokens, which the program leaves out, are up to half of that here.
    """
    import_or_skip("torch")
    from pipeline_trace import trace_stage

    whole = pipeline_of(ranks, kind, microbatches)
    for each in stages_of(whole):
        assert each.model.stage is not None
        traced = trace_peak(trace_stage(whole, each.model.stage))
        assert program_peak(job_of(each, Coefficients())) == pytest.approx(traced, rel=0.01)
