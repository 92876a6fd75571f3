"""Attention with sinks under FlashAttention, whose backward leaves them out: the program beside the trace."""

from __future__ import annotations

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from matrix.cells import Cell
from matrix.compare import planned, traced


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gpt_oss_allocates_what_flash_attention_does(checkpointing: bool) -> None:
    """Small layers, whose tables of rotary positions the program leaves out."""
    cell = Cell(0, "small", "gpt-oss-20b", "lora", checkpointing, "flash2", 1, 2048)
    trace = traced(cell)
    plan = planned(cell, trace.phase)
    assert plan.allocated_bytes == pytest.approx(trace.allocated_bytes, rel=0.01)


def test_falcon_has_a_class_of_its_own_for_flash_attention() -> None:
    """It is chosen when a layer is made, which is before the kernel is switched on."""
    trace = traced(Cell(0, "small", "falcon-7b", "lora", False, "flash2", 1, 2048))
    plan = planned(Cell(0, "small", "falcon-7b", "lora", False, "flash2", 1, 2048), trace.phase)
    assert plan.allocated_bytes == pytest.approx(trace.allocated_bytes, rel=0.01)
