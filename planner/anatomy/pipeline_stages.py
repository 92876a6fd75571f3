"""A pipeline taken apart: each group of GPUs as a job of its own, whose model is some of the layers.

Source: torchtitan e347b1e5e distributed/pipeline_parallel.py pipeline_module_split;
distributed/parallel_dims.py, whose outermost dimension is the pipeline, so that a group is a run of
neighbouring GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from planner.anatomy.device_map import shares_of
from planner.anatomy.quantized_matrices import as_built
from planner.domain.hardware import Hardware
from planner.domain.model import BlockGroup, ModelSpec
from planner.domain.recipes.parallel import NORM, Parallel, Stage
from planner.domain.scenario import Scenario
from planner.errors import NotModelledError


def stages_of(scenario: Scenario) -> tuple[Scenario, ...]:
    """The job of each group of a pipeline, first to last; one job where there is no pipeline."""
    parallel, batch = scenario.recipe.parallel, scenario.recipe.batch
    if parallel.pipeline == 1:
        return (scenario,)
    if parallel.in_turn:
        return _in_turn(scenario)
    layers = parallel.layers_of_stages(scenario.model.n_layers)
    bounds = [*pairwise(accumulate(layers, initial=0))]
    microbatches = int(parallel.microbatches or batch.grad_accum)
    recipe = replace(scenario.recipe, parallel=replace(parallel, pipeline=1))
    hardware = hardware_of_stage(scenario.hardware, parallel)
    made = []
    for rank in range(parallel.pipeline):
        own = range(rank, len(layers), parallel.pipeline)
        chunks = tuple(layers[each] for each in own)
        stage = Stage(rank, parallel.pipeline, chunks, parallel.schedule, microbatches)
        groups = _cut(scenario.model, [bounds[each] for each in own])
        model = replace(scenario.model, groups=groups, stage=stage)
        made.append(replace(scenario, model=model, hardware=hardware, recipe=recipe))
    return tuple(made)


def _in_turn(scenario: Scenario) -> tuple[Scenario, ...]:
    """The job of each GPU that has something of a model which one process spreads over several."""
    parallel, model = scenario.recipe.parallel, as_built(scenario.model, scenario.stack)
    shares = shares_of(scenario)
    if shares is None:
        raise NotModelledError(
            f'{parallel.pipeline} GPUs are too small for the weights: device_map="auto" would leave some of '
            "them in host RAM or on disk, which is not modelled; take larger GPUs, or more of them"
        )
    recipe = replace(scenario.recipe, parallel=replace(parallel, pipeline=1))
    hardware = hardware_of_stage(scenario.hardware, parallel)
    made = []
    for rank, share in enumerate(shares):
        if not share.ends and share.layers[0] == share.layers[1]:
            continue
        n_layers = share.layers[1] - share.layers[0]
        stage = Stage(rank, parallel.pipeline, (n_layers,), parallel.schedule, 1, share.ends)
        norms = model.final_norms if NORM in share.ends else ()
        # What reads the kind of a layer finds one, also where there is none.
        groups = _cut(model, [share.layers]) or (replace(model.groups[-1], count=0),)
        own = replace(model, groups=groups, final_norms=norms, stage=stage)
        made.append(replace(scenario, model=own, hardware=hardware, recipe=recipe))
    if len(made) == 1:
        raise NotModelledError(
            f'device_map="auto" puts all of this model on the first of {parallel.pipeline} GPUs, and the '
            "Trainer then copies it to each (DataParallel), which is not modelled: take one GPU, or one "
            "process for each"
        )
    return tuple(made)


def hardware_of_stage(hardware: Hardware, parallel: Parallel) -> Hardware:
    """The GPUs of one group: whole nodes, or a part of one."""
    gpus = int(hardware.world_size) // parallel.pipeline
    per_node = min(gpus, int(hardware.gpus_per_node))
    return replace(hardware, gpus_per_node=per_node, nodes=gpus // per_node)


def _cut(model: ModelSpec, bounds: Sequence[tuple[int, int]]) -> tuple[BlockGroup, ...]:
    """The layers between each pair of ``bounds``."""
    ends = [*accumulate((group.count for group in model.groups), initial=0)]
    return tuple(
        replace(group, count=min(end, stop) - max(begin, start))
        for start, stop in bounds
        for group, (begin, end) in zip(model.groups, pairwise(ends), strict=True)
        if min(end, stop) > max(begin, start)
    )
