"""In which order one group of a pipeline runs its micro-batches forward and backward.

Source: torch 2.13 distributed/pipelining/schedules.py Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
(``_get_warmup_ops``, ``_get_1f1b_rank_ops``), whose tables tests compare.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from planner.domain.recipes.parallel import Stage


class Action(NamedTuple):
    """One micro-batch through one chunk of the group's layers."""

    forward: bool
    chunk: int
    microbatch: int


def actions_of(stage: Stage) -> list[Action]:
    """All of one round."""
    forward, backward = _passes(stage, forward=True), _passes(stage, forward=False)
    first = warm_up(stage)
    made = forward[:first]
    for ahead, behind in zip(forward[first:], backward, strict=False):
        made += (ahead, behind)
    return made + backward[len(forward) - first :]


def warm_up(stage: Stage) -> int:
    """Passes forward before the first one backward is paired with one."""
    behind, n_all = stage.ranks - 1 - stage.rank, stage.microbatches * len(stage.chunks)
    if stage.schedule == "gpipe":
        return n_all
    if stage.schedule == "1f1b":
        return min(behind, n_all)
    return min((len(stage.chunks) - 1) * _per_round(stage) + 2 * behind, n_all)


def most_held(stage: Stage) -> int:
    """Most passes whose activations are held at once: each is a micro-batch through one chunk."""
    return min(warm_up(stage) + 1, stage.microbatches * len(stage.chunks))


def shortened(stage: Stage) -> Stage:
    """The group with fewer micro-batches, of which as many are held at once: more of them repeat the same."""
    if stage.schedule == "gpipe":
        return stage
    each = 1 if stage.schedule == "1f1b" else _per_round(stage)
    enough = stage.ranks + 2 if stage.schedule == "1f1b" else 3 * each
    return replace(stage, microbatches=min(stage.microbatches, enough))


def _per_round(stage: Stage) -> int:
    """Micro-batches that run through one chunk before the next one has its turn."""
    return stage.microbatches // max(1, stage.microbatches // stage.ranks)


def _passes(stage: Stage, *, forward: bool) -> list[Action]:
    n_chunks, each = len(stage.chunks), stage.microbatches
    if n_chunks > 1:
        each = _per_round(stage)
    order = range(n_chunks) if forward else range(n_chunks - 1, -1, -1)
    return [
        Action(forward, chunk, number)
        for start in range(0, stage.microbatches, each)
        for chunk in order
        for number in range(start, start + each)
    ]
