"""A sliding window that the sequence reaches gives SDPA a mask, padded or not: closed form against the trace."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
from matrix.cells import Cell, scenario_of
from matrix.compare import planned

from planner.domain.coefficients import Coefficients
from planner.domain.recipe import Attention
from planner.memory.activations import attention_mask_bytes
from planner.memory.job import Job, job_of
from tests.extras import import_or_skip

# Four layers with a window of 512 tokens.
GEMMA = Cell(0, "small", "gemma-3-1b", "lora", False, "sdpa", 4, 512)


def job(seq_tokens: int, attention: Attention = "sdpa") -> Job:
    """A packed batch of four on Gemma 3, scaled down."""
    scenario = scenario_of(replace(GEMMA, seq_tokens=seq_tokens))
    return job_of(replace(scenario, recipe=replace(scenario.recipe, attention=attention)), Coefficients())


@pytest.mark.parametrize("seq_tokens", [511, 512])
def test_closed_form_and_trace_agree_on_both_sides_of_the_window(seq_tokens: int) -> None:
    """Below the window no layer has a mask; from it on each keeps one in 16 bits.  The peaks agree on both sides.

    Compared are bytes that tensors ask for: of 511 tokens the allocator's blocks are 2 % larger, as much as the masks.
    """
    import_or_skip("peft")
    from measure.trace.program import trace_events

    cell = replace(GEMMA, seq_tokens=seq_tokens)
    changes = (each.n_bytes if each.action == "alloc" else -each.n_bytes for each in trace_events(scenario_of(cell)))
    [answer] = planned([cell], ["loss_2"])
    assert answer.allocated_bytes == pytest.approx(max(accumulate(changes)), rel=0.005)


def test_the_mask_begins_at_the_window() -> None:
    """One byte for each pair of positions and sample from 512 tokens on, and none where the kernel knows of windows itself."""
    assert attention_mask_bytes(job(511)) == 0
    assert attention_mask_bytes(job(512)) == 4 * 512 * 512
    assert attention_mask_bytes(job(512, "flash2")) == 0
