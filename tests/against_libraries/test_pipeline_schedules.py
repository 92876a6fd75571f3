"""The order of a pipeline's micro-batches is that of torch's own tables."""

from __future__ import annotations

from typing import Any

import pytest

from planner.domain.recipes.parallel import Schedule, Stage
from planner.program.schedule import actions_of, most_held, shortened
from tests.extras import import_or_skip

_CLASSES = {"1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe", "interleaved": "ScheduleInterleaved1F1B"}


def table(
    kind: Schedule, ranks: int, microbatches: int, runs: int = 2
) -> dict[int, list[tuple[bool, int, int]]]:
    """Passes of every group: whether forward, which of its runs of layers, and the micro-batch."""
    schedules = import_or_skip("torch.distributed.pipelining.schedules")
    cls: Any = getattr(schedules, _CLASSES[kind])
    schedule = cls.__new__(cls)
    schedule._n_microbatches, schedule._num_stages = microbatches, ranks
    if kind == "interleaved":
        schedule.pp_group_size, schedule.n_local_stages = ranks, runs
        schedule.microbatches_per_round = microbatches // max(1, microbatches // ranks)
        order = {rank: schedule._calculate_single_rank_operations(rank) for rank in range(ranks)}
    else:
        order = schedule._get_pipeline_order()
    kinds = schedules._ComputationType
    return {
        rank: [
            (each.computation_type == kinds.FORWARD, each.stage_index // ranks, each.microbatch_index)
            for each in actions
            if each is not None and each.computation_type in (kinds.FORWARD, kinds.FULL_BACKWARD)
        ]
        for rank, actions in order.items()
    }


@pytest.mark.parametrize(
    ("kind", "ranks", "microbatches", "runs"),
    [
        *(("1f1b", ranks, count, 1) for ranks, count in ((2, 2), (2, 8), (4, 4), (4, 10), (8, 16))),
        *(("gpipe", ranks, count, 1) for ranks, count in ((2, 3), (4, 8))),
        *(("interleaved", ranks, count, 2) for ranks, count in ((2, 4), (4, 2), (4, 10), (4, 16), (8, 24))),
        *(("interleaved", ranks, count, runs) for ranks, count, runs in ((4, 4, 8), (4, 16, 3), (2, 12, 5))),
    ],
)
def test_passes_run_in_the_order_of_torch(kind: Schedule, ranks: int, microbatches: int, runs: int) -> None:
    """And as many are held at once; leaving out micro-batches that repeat changes nothing about that."""
    for rank, listed in table(kind, ranks, microbatches, runs).items():
        stage = Stage(rank, ranks, (1,) * runs, kind, microbatches)
        # torch's table numbers the forward passes of the last group of 1F1B from 1 on; its loop does not.
        ahead = int(kind == "1f1b" and rank == ranks - 1)
        wanted = [(forward, chunk, number - ahead * forward) for forward, chunk, number in listed]
        assert [tuple(each) for each in actions_of(stage)] == wanted
        held = most = 0
        for forward, _, _ in wanted:
            held += 1 if forward else -1
            most = max(most, held)
        assert (most_held(stage), most_held(shortened(stage))) == (most, most)


def test_one_f_one_b_holds_a_micro_batch_for_each_group_behind() -> None:
    """The smaller of micro-batches and groups from this one on."""
    assert [most_held(Stage(rank, 4, (1,), "1f1b", 16)) for rank in range(4)] == [4, 3, 2, 1]
    assert [most_held(Stage(rank, 4, (1,), "gpipe", 16)) for rank in range(4)] == [16] * 4
