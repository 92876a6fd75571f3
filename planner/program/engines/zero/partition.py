"""How ZeRO stages 1 and 2 divide a flat group of parameters over processes.

Source: DeepSpeed 0.19.8 zero/stage_1_and_2.py ``flatten_dense_tensors_aligned``,
``get_data_parallel_partitions``, ``allreduce_and_scatter``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from planner.program.engines.params import Param

_START_ALIGNMENT = 2
"""Parts start at multiples of 4 bytes.  Source: stage_1_and_2.py nccl_start_alignment_factor."""


class FlatGroup:
    """One group of the optimizer: its parameters one behind the other, in equal parts for the processes."""

    def __init__(self, params: Sequence[Param], world: int) -> None:
        self.params = tuple(params)
        self.world = world
        self._starts: dict[Param, int] = {}
        start = 0
        for each in params:
            self._starts[each] = start
            start += each.elements
        step = _START_ALIGNMENT * world
        self.padded = -(-start // step) * step
        self.part = self.padded // world

    def slices(self, param: Param) -> Iterator[tuple[int, int]]:
        """Process and elements of each piece of ``param``, in order."""
        start = self._starts[param]
        end = start + param.elements
        while start < end:
            owner = start // self.part
            stop = min(end, (owner + 1) * self.part)
            yield owner, stop - start
            start = stop

    def own(self, rank: int) -> dict[Param, int]:
        """Parameters of which process ``rank`` (-1: the last) updates some elements, and how many."""
        first = rank % self.world * self.part
        ends = ((each, start, start + each.elements) for each, start in self._starts.items())
        found = {each: min(end, first + self.part) - max(start, first) for each, start, end in ends}
        return {each: n for each, n in found.items() if n > 0}


def merged(slices: Iterable[tuple[int, int]]) -> list[int]:
    """Elements of the pieces of a bucket after neighbours of the same process have become one."""
    sizes: list[int] = []
    before = -1
    for owner, elements in slices:
        if owner == before:
            sizes[-1] += elements
        else:
            sizes.append(elements)
        before = owner
    return sizes


def sent_together(sizes: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Pieces that are reduced in one call: a call is complete when it has more than ``limit`` elements."""
    call: list[int] = []
    for size in sizes:
        call.append(size)
        if sum(call) > limit:
            yield call
            call = []
    if call:
        yield call
