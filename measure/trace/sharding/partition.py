"""How ZeRO stages 1 and 2 divide a flat group of parameters over processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from measure.trace.sharding.sharded_parameters import TracedParameter

_START_ALIGNMENT = 2
"""Parts start at multiples of 4 bytes.  Source: DeepSpeed 0.19.8 zero/stage_1_and_2.py
nccl_start_alignment_factor.
"""


@dataclass(frozen=True, slots=True)
class TracedFlatGroup:
    """One group of the optimizer, flat: its parameters in order, and where each starts."""

    parameters: tuple[TracedParameter, ...]
    world: int
    starts: dict[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def of(cls, parameters: Sequence[TracedParameter], world: int) -> TracedFlatGroup:
        """The group of ``parameters`` over ``world`` processes."""
        starts, start = {}, 0
        for each in parameters:
            starts[each.key] = start
            start += each.elements
        return cls(tuple(parameters), world, starts)

    @property
    def padded_elements(self) -> int:
        """Elements of the flat buffer: padded so that all processes have equal parts of a whole alignment."""
        step = _START_ALIGNMENT * self.world
        return -(-sum(each.elements for each in self.parameters) // step) * step

    @property
    def part_elements(self) -> int:
        """Elements of the part of one process."""
        return self.padded_elements // self.world

    def slices(self, parameter: TracedParameter) -> Iterator[tuple[int, int]]:
        """Process and elements of each piece of ``parameter``, in order."""
        start = self.starts[parameter.key]
        end = start + parameter.elements
        while start < end:
            owner = start // self.part_elements
            stop = min(end, (owner + 1) * self.part_elements)
            yield owner, stop - start
            start = stop

    def own(self, rank: int) -> list[TracedParameter]:
        """Parameters of which process ``rank`` updates some elements."""
        return [each for each in self.parameters if any(owner == rank for owner, _ in self.slices(each))]


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
    """Pieces that are reduced in one call: a call is complete when it has more than ``limit`` elements.

    Source: DeepSpeed 0.19.8 zero/stage_1_and_2.py allreduce_and_scatter.
    """
    call: list[int] = []
    for size in sizes:
        call.append(size)
        if sum(call) > limit:
            yield call
            call = []
    if call:
        yield call
