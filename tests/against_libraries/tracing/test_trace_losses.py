"""Losses that never hold all logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

import torch
from scenarios import Setup
from tiny_traces import Small, built, fake_trace, small_scenario

from measure.recipe.losses import CHUNKS, FusedLinearCrossEntropy, install_loss, liger_chunk_rows
from measure.trace.tracer import Recorder
from planner.domain.recipes.recipe import Loss
from planner.domain.scenario import Scenario
from planner.errors import NotModelledError

VOCABULARY, HIDDEN, TOKENS = 512, 256, 2 * 32


def _scenario(loss: Loss, **changes: Any) -> Scenario:
    case = small_scenario("llama", Setup(**changes), small=Small(2, 32))
    return replace(case, recipe=replace(case.recipe, loss=loss))


def _materialized(case: Scenario) -> Any:
    torch.manual_seed(0)
    model = built("llama", case).model.to_empty(device="cpu").float()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.normal_(0, 0.02)
    return model


def test_a_loss_in_pieces_is_the_same_loss() -> None:
    """On real tensors, loss and gradients of the head are those of the whole, and no logits come back."""
    results = []
    for loss in ("hf", "chunked"):
        case = _scenario(loss)
        model = _materialized(case)
        install_loss(model, case.recipe)
        ids = torch.arange(TOKENS).reshape(2, -1)
        out = model(input_ids=ids, labels=ids, num_items_in_batch=torch.tensor(TOKENS - 2))
        out.loss.backward()
        assert (out.logits is None) is (loss == "chunked")
        results.append((out.loss.detach(), model.lm_head.weight.grad))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize(("loss", "whole"), [("hf", True), ("chunked", False)])
def test_only_a_piece_of_the_logits_is_alive(loss: Loss, whole: bool) -> None:
    """All logits in fp32 exist with the plain loss only; in pieces, an eighth of them at a time."""
    trace = fake_trace("llama", _scenario(loss, rank=4), cuda=True)
    sizes = {
        each.block.n_bytes
        for each in trace.records
        if each.alloc and each.place.layer < 0 and each.place.stage != "load"
    }
    assert (TOKENS * VOCABULARY * 4 in sizes) is whole
    assert (TOKENS // CHUNKS * VOCABULARY * 4 in sizes) is not whole


def test_the_rows_of_a_piece_are_those_of_ligers_example() -> None:
    """16,384 rows, 32,000 words and width 4096 make pieces of 2048 rows,
    as the comment in Liger's source says.
    """
    assert liger_chunk_rows(4096 * 4, 32000, 4096) == 2048
    assert liger_chunk_rows(5, 1000, 1000) == 5
    assert liger_chunk_rows(100, 3000, 1000) == 64


@pytest.mark.parametrize("trains_head", [True, False])
def test_liger_keeps_gradients_instead_of_logits(trains_head: bool) -> None:
    """After the forward pass only the gradients of hidden states and of a trained head are there;
    one piece's logits before.
    """
    words, recorder = 768, Recorder()
    with recorder:
        rows = torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.zeros(words, HIDDEN, dtype=torch.bfloat16, requires_grad=trains_head)
        recorder.enter_stage("forward")
        loss = FusedLinearCrossEntropy.apply(rows, weight, torch.zeros(TOKENS, dtype=torch.int64))
        forward = [each for each in recorder.trace.records if each.place.stage == "forward"]
        alive = {each.block.id: each.block.n_bytes for each in forward if each.alloc}
        for each in forward:
            if not each.alloc:
                alive.pop(each.block.id)
        recorder.close()
    wanted = [TOKENS * HIDDEN * 2, *([words * HIDDEN * 2] if trains_head else [])]
    assert sorted(size for size in alive.values() if size > 8 * TOKENS) == wanted
    made = [each.block.n_bytes for each in forward if each.alloc]
    assert made.count(liger_chunk_rows(TOKENS, words, HIDDEN) * words * 2) == 1
    loss.backward()
    assert (weight.grad is not None) is trains_head


def test_logits_that_a_model_changes_are_refused() -> None:
    """A capped or scaled logit is computed after the head, which a loss in pieces would have to do itself."""
    case = _scenario("liger")
    model: Any = built("llama", case).model
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(NotModelledError, match="final_logit_softcapping"):
        install_loss(model, case.recipe)
