"""What the trace of a loss in pieces holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from scenarios import Setup
from tiny_traces import Small, fake_trace, small_scenario

from measure.recipe.losses import CHUNKS
from planner.domain.recipes.recipe import Loss

VOCABULARY, TOKENS = 512, 2 * 32


@pytest.mark.parametrize(("loss", "whole"), [("hf", True), ("chunked", False)])
def test_only_a_piece_of_the_logits_is_alive(loss: Loss, whole: bool) -> None:
    """All logits in fp32 exist with the plain loss only; in pieces, an eighth of them at a time."""
    case = small_scenario("llama", Setup(rank=4), small=Small(2, 32))
    case = replace(case, recipe=replace(case.recipe, loss=loss))
    trace = fake_trace("llama", case, cuda=True)
    sizes = {
        each.block.n_bytes
        for each in trace.records
        if each.alloc and each.place.layer < 0 and each.place.stage != "load"
    }
    assert (TOKENS * VOCABULARY * 4 in sizes) is whole
    assert (TOKENS // CHUNKS * VOCABULARY * 4 in sizes) is not whole
