"""The cache that natural lengths pile up, against replays of a traced job whose batches change their length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from measure.trace.allocator import CachingAllocator
from measure.trace.blocks import Block
from measure.trace.program import trace_events
from measure.trace.settings import DEFAULT_SETTINGS, AllocatorSettings
from planner.domain.coefficients import Coefficients
from planner.domain.term import LENGTH_CACHE
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.job import job_of
from planner.memory.lengths import records
from planner.memory.peak import predict_memory
from planner.units import GIB, MIB

CAP, MEAN, BATCH, STEPS = 1024, 400, 2, 100
TRACED = (256, 512, 1024)
FLAGS = {"model": "qwen2.5-0.5b", "method": "lora", "gpu": "h200-sxm", "batch": BATCH, "gradient_checkpointing": True}
LATER_STEP = ("forward_2", "loss_2", "backward_2")


class Stream:
    """A traced job whose sizes follow from the length: three traces with the same events give each size as a parabola."""

    def __init__(self) -> None:
        traces = [trace_events(resolve(from_flags({**FLAGS, "seq": length}))) for length in TRACED]
        sizes = np.array([[event.n_bytes for event in trace] for trace in traces], float)
        self.parabolas = np.linalg.solve(np.vander(np.array(TRACED, float), 3, increasing=True), sizes)
        self.allocates = [event.action == "alloc" for event in traces[0]]
        self.blocks = [event.block for event in traces[0]]
        self.again = next(index for index, event in enumerate(traces[0]) if event.phase in LATER_STEP)

    def reserved_bytes(self, lengths: Sequence[int], settings: AllocatorSettings = DEFAULT_SETTINGS) -> int:
        """What is reserved after one micro-step at each of ``lengths``; blocks of the small pool are left out."""
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
    return [max(16, *(min(CAP, round(draw.expovariate(1 / MEAN))) for _ in range(BATCH))) for _ in range(STEPS)]


def test_only_a_longer_batch_than_all_before_reserves_more() -> None:
    """A run of thirty batches reserves what its records alone do."""
    lengths = drawn(1)[:30]
    assert stream().reserved_bytes(lengths) == stream().reserved_bytes(tops(lengths))


def test_what_is_stranded_is_a_share_of_the_logits_of_the_records_before_the_last() -> None:
    """Over eight orders, coefficient ``length_cache_share`` of 12 bytes per logit of those records, within 10 %."""
    vocabulary = job_of(resolve(from_flags({**FLAGS, "seq": CAP})), Coefficients()).model.vocab_size
    found, expected = 0.0, 0.0
    for seed in range(8):
        longest = tops(drawn(seed))
        found += stream().reserved_bytes(longest) - stream().reserved_bytes(longest[-1:])
        expected += Coefficients().length_cache_share * 12 * vocabulary * BATCH * sum(longest[:-1])
    assert found == pytest.approx(expected, rel=0.1)


# Tensors of one loss in the order of the program: ``+`` made, ``-`` dropped, with bytes per logit.  The second chain is that of
# code that keeps its logits in 16 bits under autocast: logits, log-softmax, its fp32 copy for the nll loss, fp32 logits returned.
_WIDENED = "+a2 +b4 -a +c4 -b +d4 +e4 -d -c +f2 -e -f"
_KEPT = "+a2 +b2 +c4 +d4 -a -d +e4 -c +f2 -e +g2 -b -f -g"


@pytest.mark.parametrize(("chain", "fp32_bytes"), [(_WIDENED, 12), (_KEPT, 8)], ids=["widened", "kept-in-16-bit"])
def test_a_longer_batch_finds_room_for_its_16_bit_logits_in_outgrown_fp32_blocks(chain: str, fp32_bytes: int) -> None:
    """What growing batches strand is their fp32 copies, all records but the last, within 10 %."""
    lengths = (0.2, 0.3, 0.45, 0.6, 0.75, 0.85, 0.9, 0.95, 1.0)

    def reserved_bytes(batches: Sequence[float]) -> int:
        allocator, live = CachingAllocator(DEFAULT_SETTINGS), dict[str, Block]()
        for length in batches:
            for step in chain.split():
                if step[0] == "+":
                    made = allocator.malloc(int(length * int(step[2]) * GIB))
                    assert made is not None
                    live[step[1]] = made
                else:
                    allocator.free(live.pop(step[1]))
        return allocator.reserved_bytes

    stranded = reserved_bytes(lengths) - reserved_bytes(lengths[-1:])
    assert stranded == pytest.approx(fp32_bytes * GIB * sum(lengths[:-1]), rel=0.1)


def test_segments_that_grow_strand_nothing() -> None:
    """With expandable segments, batches that grow reserve what the longest alone does."""
    growing = AllocatorSettings(expandable_segments=True)
    alone = stream().reserved_bytes([CAP], growing)
    assert stream().reserved_bytes([256, 512, 768, CAP], growing) == pytest.approx(alone, rel=0.01)


def test_the_term_is_the_median_over_orders() -> None:
    """Half of 24 drawn runs strand less in replays than the closed form says, within one standard error and a tenth."""
    scenario = resolve(from_flags({**FLAGS, "seq": CAP, "tokens_per_sample": MEAN, "padding": "longest"}))
    scenario = replace(scenario, run=replace(scenario.run, n_samples=BATCH * STEPS))
    # The lengths above start at 0, so their deviation is their mean, and the cut lowers both.
    job = job_of(scenario, replace(Coefficients(), length_variation=0.98))
    runs = [drawn(seed) for seed in range(100, 124)]
    mean = sum(sum(min(CAP, length) for length in run) for run in runs) / (24 * STEPS)
    assert mean > MEAN
    fixed = stream().reserved_bytes([CAP])
    stranded = [stream().reserved_bytes(tops(run)) - fixed for run in runs]
    term = next(term for term in predict_memory(job).terms if term.label == LENGTH_CACHE)
    error = float(np.std(stranded)) / len(runs) ** 0.5
    assert abs(float(term.n_bytes) - float(np.median(stranded))) < error + 0.1 * float(np.median(stranded))
    assert float(records(job).total) > 1
