"""Losses that never hold all logits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.extras import import_or_skip

import_or_skip("transformers")

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from measure.recipe.losses import FusedLinearCrossEntropy, install_loss, liger_chunk_rows
from measure.trace.tracer import Recorder
from planner.errors import NotModelledError

if TYPE_CHECKING:
    from planner.domain.recipes.recipe import Recipe

VOCABULARY, HIDDEN, TOKENS = 96, 16, 2 * 32
CONFIG: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def model_with(loss: str, config: dict[str, Any]) -> Any:
    """A Llama of one layer, the same each time, that computes this loss."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**config))
    install_loss(model, cast("Recipe", SimpleNamespace(loss=loss)))
    return model


@pytest.mark.parametrize("counted", [False, True])
def test_a_loss_in_pieces_is_the_same_loss(counted: bool) -> None:
    """With a count of tokens a mean, without one a sum; the head's gradient is that of the whole,
    and no logits come back.
    """
    ids = torch.arange(TOKENS).reshape(2, -1)
    labels = ids.clone()
    labels[0, :9] = -100
    given = {"num_items_in_batch": torch.tensor(TOKENS - 10)} if counted else {}
    whole, pieces = (model_with(loss, CONFIG) for loss in ("hf", "chunked"))
    wanted, found = (model(input_ids=ids, labels=labels, **given) for model in (whole, pieces))
    assert (wanted.logits is None, found.logits) == (False, None)
    # The library's own loss is a mean over the labels: two rows' ends have none, and eight are masked.
    times = 1 if counted else TOKENS - 10
    torch.testing.assert_close(found.loss, wanted.loss * times)
    found.loss.backward()
    (wanted.loss * times).backward()
    torch.testing.assert_close(pieces.lm_head.weight.grad, whole.lm_head.weight.grad)


def test_mixtures_hand_the_number_of_words_over_by_position() -> None:
    """Transformers 5.23 models/qwen2_moe and others; the loss does not need it."""
    model = model_with("chunked", CONFIG)
    logits, labels = torch.ones(1, 4, HIDDEN), torch.tensor([[1, 2, 3, 4]])
    found = model.loss_function(logits, labels, VOCABULARY, num_items_in_batch=torch.tensor(3))
    torch.testing.assert_close(found, model.loss_function(logits, labels, num_items_in_batch=torch.tensor(3)))


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
    words, hidden, recorder = 768, 256, Recorder()
    with recorder:
        rows = torch.zeros(TOKENS, hidden, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.zeros(words, hidden, dtype=torch.bfloat16, requires_grad=trains_head)
        recorder.enter_stage("forward")
        loss_of: Any = FusedLinearCrossEntropy.apply
        loss = loss_of(rows, weight, torch.zeros(TOKENS, dtype=torch.int64))
        forward = [each for each in recorder.trace.records if each.place.stage == "forward"]
        alive = {each.block.id: each.block.n_bytes for each in forward if each.alloc}
        for each in forward:
            if not each.alloc:
                alive.pop(each.block.id)
        recorder.close()
    wanted = [TOKENS * hidden * 2, *([words * hidden * 2] if trains_head else [])]
    assert sorted(size for size in alive.values() if size > 8 * TOKENS) == wanted
    made = [each.block.n_bytes for each in forward if each.alloc]
    assert made.count(liger_chunk_rows(TOKENS, words, hidden) * words * 2) == 1
    loss.backward()
    assert (weight.grad is not None) is trains_head


def test_logits_that_a_model_changes_are_refused() -> None:
    """A capped or scaled logit is computed after the head, which a loss in pieces would have to do itself."""
    with pytest.raises(NotModelledError, match="final_logit_softcapping"):
        model_with("liger", {**CONFIG, "final_logit_softcapping": 30.0})
    model_with("hf", {**CONFIG, "final_logit_softcapping": 30.0})


def test_a_head_with_a_bias_is_refused() -> None:
    """Its products are without one."""
    model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    model.lm_head = torch.nn.Linear(HIDDEN, VOCABULARY)
    with pytest.raises(NotModelledError, match="a head with a bias"):
        install_loss(model, cast("Recipe", SimpleNamespace(loss="chunked")))
