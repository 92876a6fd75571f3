"""The cache that natural lengths pile up,
against replays of a traced job whose batches change their length.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from measure.trace.traced_job import trace_events
from planner.allocator.blocks import Block
from planner.allocator.caching_allocator import CachingAllocator
from planner.allocator.columns import passing
from planner.allocator.settings import DEFAULT_SETTINGS, AllocatorSettings
from planner.allocator.slots import SlotEvents, replay_parts
from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.request_stream import RequestStream as Program
from planner.program.step import step_of
from planner.units import MIB
from tests.jobs import job_by, resolved, typed

CAP, MEAN, BATCH, STEPS = 1024, 400, 2, 100
TRACED = (256, 512, 1024)
FLAGS = typed(f"--model qwen2.5-0.5b --method lora --gpu h200-sxm --batch {BATCH} --gradient-checkpointing")
LATER_STEP = ("forward_2", "loss_2", "backward_2")


class Stream:
    """A traced job whose sizes follow from the length:
    three traces with the same events give each size as a parabola.
    """

    def __init__(self) -> None:
        traces = [trace_events(resolved({**FLAGS, "seq": length})) for length in TRACED]
        sizes = np.array([[event.n_bytes for event in trace] for trace in traces], float)
        self.parabolas = np.linalg.solve(np.vander(np.array(TRACED, float), 3, increasing=True), sizes)
        self.allocates = [event.action == "alloc" for event in traces[0]]
        self.blocks = [event.block for event in traces[0]]
        self.again = next(index for index, event in enumerate(traces[0]) if event.phase in LATER_STEP)

    def reserved_bytes(self, lengths: Sequence[int], settings: AllocatorSettings = DEFAULT_SETTINGS) -> int:
        """What is reserved after one micro-step at each of ``lengths``;
        blocks of the small pool are left out.
        """
        allocator, live = CachingAllocator(settings), dict[int, Block | None]()
        for number, length in enumerate(lengths):
            made: set[int] = set()
            sizes = np.rint(self.parabolas.T @ (1.0, length, length * length)).astype(int).tolist()
            for index in range(self.again if number else 0, len(sizes)):
                block = self.blocks[index]
                if not self.allocates[index]:
                    self._free(allocator, live, block)
                elif sizes[index] > MIB:
                    live[block] = allocator.malloc(sizes[index])
                    if index >= self.again:
                        made.add(block)
            for block in made:
                self._free(allocator, live, block)
        return allocator.reserved_bytes

    @staticmethod
    def _free(allocator: CachingAllocator, live: dict[int, Block | None], block: int) -> None:
        held = live.pop(block, None)
        if held is not None:
            allocator.free(held)


@cache
def stream() -> Stream:
    """The stream of the one job that is traced here."""
    return Stream()


def tops(lengths: Sequence[int]) -> list[int]:
    """The lengths that are longer than all before them."""
    return [length for index, length in enumerate(lengths) if length > max(lengths[:index], default=0)]


def drawn(seed: int) -> list[int]:
    """Longest samples of the batches of one run: an exponential cut at the cap."""
    draw = random.Random(seed)
    return [
        max(16, *(min(CAP, round(draw.expovariate(1 / MEAN))) for _ in range(BATCH))) for _ in range(STEPS)
    ]


def test_only_a_longer_batch_than_all_before_reserves_more() -> None:
    """A run of thirty batches reserves what its records alone do."""
    lengths = drawn(1)[:30]
    assert stream().reserved_bytes(lengths) == stream().reserved_bytes(tops(lengths))


def test_segments_that_grow_strand_nothing() -> None:
    """With expandable segments, batches that grow reserve no more than the longest alone does."""
    growing = AllocatorSettings(expandable_segments=True)
    alone = stream().reserved_bytes([CAP], growing)
    assert stream().reserved_bytes([256, 512, 768, CAP], growing) <= 1.01 * alone


def test_the_program_reserves_what_the_trace_does() -> None:
    """After each longest batch so far of three drawn runs, within 2 % of all that is reserved."""
    job = job_by({**FLAGS, "seq": CAP})
    program = step_of(job)
    later = next(begin for begin, phase in program.phases if phase == "forward_2")
    for seed in range(3):
        lengths = tops(drawn(seed))
        sizes = [_sizes(program, job.at_length(length)) for length in lengths]
        events = SlotEvents(program.events, sizes[0], (), [begin for begin, _ in program.phases])
        again, *_ = passing(events.events[later:], len(events.sizes))
        reserved = replay_parts(events, [(events.events, sizes[0]), *((again, each) for each in sizes[1:])])
        assert reserved[-1] == pytest.approx(stream().reserved_bytes(lengths), rel=0.02)


def _sizes(program: Program, job: Job) -> list[int]:
    return program.sizes({unit: float(count) for unit, count in unit_values(job).items()})
