"""Losses over log-probabilities, of a model whose next-token chances are known."""

from __future__ import annotations

import math
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.extras import import_or_skip

import_or_skip("torch")

import torch

from measure.recipe.preference_steps import (
    Passes,
    WithValueHead,
    disable_dropout,
    preference_loss,
    selective_log_softmax,
)
from planner.errors import NotModelledError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from planner.domain.recipes.recipe import Recipe
    from planner.domain.stack_values import PairLogps


class Bigrams(torch.nn.Module):
    """Two words; the second one has so many times the chance of the first, whatever stood before."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.head = torch.nn.Parameter(torch.tensor([0.0, math.log(times)]))
        self.n_graphs = 0

    def forward(self, input_ids: Any, **_given: Any) -> Any:
        """Logits, log-probabilities of the next words, and a loss that nobody asks for."""
        self.n_graphs += torch.is_grad_enabled()
        logits = self.head.expand(*input_ids.shape, 2)
        picked = logits[:, :-1].log_softmax(-1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)
        return SimpleNamespace(logits=logits, log_probs=picked)


# The first half of the rows is chosen: two steps, to the likely word; the second half goes to the other.
PAIR = {"input_ids": torch.tensor([[0, 1, 1], [0, 0, 0]]), "attention_mask": torch.ones(2, 3)}
# Margin of the policy: 2 ln(3/4) - 2 ln(1/4) = 2 ln 3; of the reference, with 2/3 and 1/3: 2 ln 2.
DPO = math.log(1 + 1.5**-0.2)


def loss(
    task: str, kernel: str, rows: dict[str, Any] = PAIR, **recipe: Any
) -> tuple[Any, list[str], Bigrams]:
    """Of some rows under one kernel, with the stages that were entered."""
    stages: list[str] = []
    known = {"task": task, "loss": "hf", "has_reference": True, "caches_reference": False, **recipe}
    policy, likelihood = Bigrams(3.0), bool(known.pop("likelihood", False))
    passes = Passes(
        policy,
        Bigrams(2.0),
        cast("Recipe", SimpleNamespace(**known)),
        cast("PairLogps", kernel),
        likelihood,
        stages.append,
    )
    return preference_loss(passes, rows), stages, policy


@pytest.mark.parametrize("kernel", ["whole", "whole_with_loss", "whole_let_go", "shifted_rows", "tiles"])
def test_a_pair_costs_what_its_margin_over_the_reference_says(kernel: str) -> None:
    """-ln sigmoid(0.1 x 2 ln 1.5), whatever the kernel, with a gradient for the policy alone."""
    found, stages, policy = loss("dpo", kernel)
    assert found.item() == pytest.approx(DPO)
    assert stages == ["reference", "metrics"]
    found.backward()
    assert policy.head.grad is not None
    # -0.1 x sigmoid(-0.2 ln 1.5) x 2, by which the margin grows with the likely word's logit.
    assert policy.head.grad[1].item() == pytest.approx(-0.2 / (1 + 1.5**0.2))


def test_likelihood_of_the_chosen_is_taken_anew() -> None:
    """``whole_twice`` adds the chosen sequence's -2 ln(3/4)."""
    assert loss("dpo", "whole_twice")[0].item() == pytest.approx(DPO - 2 * math.log(3 / 4))


@pytest.mark.parametrize("kernel", ["whole", "whole_let_go", "shifted_rows", "rows", "tiles"])
def test_a_reference_that_is_known_is_not_asked(kernel: str) -> None:
    """Then there is one pass of the policy and nothing else."""
    _, stages, policy = loss("dpo", kernel, has_reference=False, caches_reference=True)
    assert (stages, policy.n_graphs) == ([], 1)


@pytest.mark.parametrize("kernel", ["whole", "rows"])
def test_odds_have_no_reference(kernel: str) -> None:
    """ORPO: -ln sigmoid(2 ln 3) = ln(10/9), and with the likelihood -ln(3/4) of each chosen token."""
    found, stages, _ = loss("orpo", kernel, has_reference=False)
    assert found.item() == pytest.approx(math.log(10 / 9))
    assert stages == []
    found, _, _ = loss("orpo", kernel, has_reference=False, likelihood=True)
    assert found.item() == pytest.approx(math.log(10 / 9) - math.log(3 / 4))


@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [
        ("rows", ["divergence", "forward", "reference", "reference_2", "metrics"]),
        ("shifted_rows", ["divergence", "forward", "reference", "reference_2", "metrics"]),
        ("whole", ["divergence", "reference", "reference_2", "metrics"]),
    ],
)
def test_the_divergence_of_kto_has_passes_of_its_own(kernel: str, wanted: list[str]) -> None:
    """Of one likely and two unlikely samples the ratios, 2 ln(9/8) and 2 ln(3/4), less their mean
    are 4/3 ln 1.5 and -2/3 ln 1.5; each costs 1 - sigmoid of a tenth.
    """
    found, stages, policy = loss("kto", kernel, {"input_ids": PAIR["input_ids"][[0, 1, 1]]})
    assert found.item() == pytest.approx((1 / (1 + 1.5 ** (0.4 / 3)) + 2 / (1 + 1.5 ** (-0.2 / 3))) / 3)
    assert stages == wanted
    assert policy.n_graphs == 1


def test_without_a_second_model_adapters_are_switched_off() -> None:
    """During the reference's pass only, and without gradients."""
    seen: list[object] = []

    @contextmanager
    def disable_adapter() -> Iterator[None]:
        seen.append("off")
        yield
        seen.append("on")

    model = SimpleNamespace(disable_adapter=disable_adapter)
    passes = Passes(model, None, cast("Recipe", None), "rows", likelihood=False, enter=seen.append)
    with passes.as_before() as before:
        seen.append(before is model and not torch.is_grad_enabled())
    assert seen == ["reference", "off", True, "on", "metrics"]
    assert torch.is_grad_enabled()


def test_a_value_head_scores_the_last_token_that_is_no_padding() -> None:
    """Weights of one make a value of the sum of the hidden states; dropout is off after it is disabled."""

    class Words(torch.nn.Module):
        """Each token's hidden state is its own number, twice."""

        def forward(self, input_ids: Any, **_given: Any) -> Any:
            states = input_ids[..., None].expand(*input_ids.shape, 2).float()
            return SimpleNamespace(logits=states.bfloat16(), hidden_states=(states * 9, states), loss=None)

    model = WithValueHead(Words(), 2)
    torch.nn.init.ones_(model.v_head.summary.weight)
    torch.nn.init.zeros_(model.v_head.summary.bias)
    disable_dropout(model)
    assert model.v_head.dropout.p == 0.0
    logits, _, values = model(torch.tensor([[1, 2, 3]]))
    assert (logits.dtype, values.tolist()) == (torch.float32, [[2.0, 4.0, 6.0]])
    rows = {
        "input_ids": torch.tensor([[1, 2, 7], [1, 1, 9]]),
        "attention_mask": torch.tensor([[1, 1, 0]] * 2),
    }
    recipe = cast("Recipe", SimpleNamespace(task="reward", loss="hf"))
    passes = Passes(model, None, recipe, "rows", likelihood=False, enter=lambda _stage: None)
    # Values 4 and 2.
    assert preference_loss(passes, rows).item() == pytest.approx(math.log(1 + math.exp(-2)))


@pytest.mark.parametrize("task", ["dpo", "kto"])
def test_another_way_to_log_probabilities_is_refused(task: str) -> None:
    """ms-swift's is not here, and no other stands in."""
    with pytest.raises(NotModelledError, match=f"task '{task}' of this software cannot be traced"):
        loss(task, "rows_let_go")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_are_those_of_a_log_softmax(dtype: Any) -> None:
    """Rows by rows as at once, in fp32 by logsumexp, below it by log_softmax."""
    logits = torch.tensor([[[0.0, math.log(3)]], [[math.log(7), 0.0]]], dtype=dtype)
    found = selective_log_softmax(logits, torch.tensor([[1], [1]]))
    assert found.dtype == dtype
    wanted = torch.tensor([[math.log(3 / 4)], [math.log(1 / 8)]])
    torch.testing.assert_close(found.float(), wanted, rtol=0.01, atol=0.0)
