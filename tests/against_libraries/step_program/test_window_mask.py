"""A sliding window that the sequence reaches gives SDPA a mask, padded or not:
the program against the trace.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from matrix.cells import Cell
from matrix.compare import planned, traced

from tests.extras import import_or_skip

import_or_skip("peft")

# Three layers with a window of 512 tokens and one without.
GEMMA = Cell(0, "small", "gemma-3-1b", "lora", False, "sdpa", 4, 512)


@pytest.mark.parametrize("seq_tokens", [511, 512])
def test_program_and_trace_agree_on_both_sides_of_the_window(seq_tokens: int) -> None:
    """Below the window no layer has a mask; from it on those with a window share one,
    and each keeps what its kernel makes of it.  Tables of positions, which the program leaves out, are three
    thousandths here.
    """
    cell = replace(GEMMA, seq_tokens=seq_tokens)
    trace = traced(cell)
    assert planned(cell, trace.phase).allocated_bytes == pytest.approx(trace.allocated_bytes, rel=0.0035)


def test_the_mask_begins_at_the_window() -> None:
    """One token more adds more than its share: a byte for each pair of positions and sample,
    and what layers make of them.
    """
    below, at = (
        planned(replace(GEMMA, seq_tokens=length), "forward_2").phases["forward_2"] for length in (510, 512)
    )
    further = planned(replace(GEMMA, seq_tokens=508), "forward_2").phases["forward_2"]
    assert at - below > below - further + 4 * 512 * 512
