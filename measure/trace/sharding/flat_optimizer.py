"""The recipe's real optimizer over the shards of one rank, recorded on fake tensors of their true sizes."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from measure.recipe.optimizers import optimizer_over
from measure.trace.cuda.shims import Situation, shims
from measure.trace.host_records import HOST_STREAMS
from measure.trace.record import Record
from measure.trace.tracer import Recorder
from planner.domain.recipes.recipe import Recipe

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shards:
    """Tensors that an optimizer updates, by group, and the bytes of an element."""

    groups: tuple[tuple[Shape, ...], ...]
    element_bytes: int


def record_steps(shards: Shards, recipe: Recipe, n_steps: int) -> list[list[list[Record]]]:
    """What each of ``n_steps`` steps allocates and frees, group by group; gradients are there already.

    The recorder sees them made: what it does not know it takes for new where an operator returns it.
    """
    recorder = Recorder()
    with FakeTensorMode(), shims(Situation(False, recorder)):
        with recorder:
            dtype = torch.float32 if shards.element_bytes == torch.float32.itemsize else torch.bfloat16
            groups = [
                [nn.Parameter(torch.empty(shape, dtype=dtype)) for shape in shapes]
                for shapes in shards.groups
            ]
        optimizer = optimizer_over(
            nn.Module(), [{"params": tensors, "weight_decay": 0.0} for tensors in groups], recipe
        )
        return [
            [_one_group(optimizer, index, recorder) for index in range(len(groups))] for _ in range(n_steps)
        ]


def _one_group(optimizer: torch.optim.Optimizer, index: int, recorder: Recorder) -> list[Record]:
    """The step of one group alone:
    DeepSpeed steps group by group (zero/stage_1_and_2.py ``_optimizer_step``).
    """
    groups: Any = optimizer.param_groups
    with recorder:
        for tensor in groups[index]["params"]:
            tensor.grad = torch.empty_like(tensor)
    start = len(recorder.trace.records)
    recorder.enter_stage("optimizer_step")
    with recorder:
        optimizer.param_groups = [groups[index]]
        optimizer.step()
        gc.collect()
    optimizer.param_groups = groups
    for tensor in groups[index]["params"]:
        tensor.grad = None
        for value in optimizer.state[tensor].values():
            if isinstance(value, torch.Tensor):
                recorder.mark(value, "optimizer_states")
    return recorder.trace.records[start:]


def on_host(steps: list[list[list[Record]]]) -> list[list[list[Record]]]:
    """The states of ``steps`` as pageable host memory: what an optimizer that runs on the host keeps.

    Its temporaries are left out: DeepSpeed's CPU Adam has none, torch's needs a copy of one shard at a time.
    """
    return [
        [[_moved(each) for each in records if each.block.role == "optimizer_states"] for records in step]
        for step in steps
    ]


def _moved(record: Record) -> Record:
    record.block.host_name, record.block.stream = "offloaded_optimizer", HOST_STREAMS["pageable"]
    return record


def as_shards(groups: Sequence[Sequence[Shape]], element_bytes: int) -> Shards:
    """Shapes by group."""
    return Shards(tuple(tuple(shapes) for shapes in groups), element_bytes)
