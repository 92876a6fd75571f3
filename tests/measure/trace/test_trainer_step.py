"""Batches, passes and the optimizer's step as the Trainer has them."""

from __future__ import annotations

import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("transformers")
import_or_skip("peft")

import torch
from torch import nn

from measure.trace.tracer import Recorder
from measure.trace.trainer_step import Inputs, _optimizer_step, losses_of, micro_step
from planner.domain.recipes.recipe import Batch
from planner.domain.scenario import Scenario
from planner.domain.stack_values import PackedMask
from tests.measure.trace.tiny import llama

ROWS, LENGTH = 2, 7


def job() -> Scenario:
    """Two packed rows of seven tokens."""
    case, _ = llama()
    batch = Batch(ROWS, 1, LENGTH, "packed", LENGTH)
    return replace(case, recipe=replace(case.recipe, batch=batch))


def test_a_batch_has_ids_labels_and_a_mask_of_one_shape() -> None:
    """Ids are below the size of the vocabulary."""
    made = Inputs(job(), 5).make()
    assert {name: tuple(each.shape) for name, each in made.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "labels"), (ROWS, LENGTH)
    )
    assert 0 <= int(made["input_ids"].min()) <= int(made["input_ids"].max()) < 5


@pytest.mark.parametrize(("mask", "shape"), [("rows", (ROWS, LENGTH)), ("one_row", (1, ROWS * LENGTH))])
def test_packed_samples_that_are_told_apart_have_positions(mask: PackedMask, shape: tuple[int, int]) -> None:
    """Seven tokens are samples of four and three, and there is no mask then; rows may lie in one."""
    case = job()
    made = Inputs(replace(case, stack=replace(case.stack, packed_mask=mask, sdpa_mask="bool")), 5).make()
    assert "attention_mask" not in made
    assert tuple(made["position_ids"].shape) == shape == tuple(made["input_ids"].shape)
    assert made["position_ids"][0, :LENGTH].tolist() == [0, 1, 2, 3, 0, 1, 2]


def test_a_loop_keeps_what_the_model_returned_until_it_returns_again() -> None:
    """Its logits are alive in the next forward pass; a trainer that lets them go has no such function."""
    case, alive = job(), []
    returned: list[Any] = []

    def model(**_: Any) -> Any:
        alive.append([each() is not None for each in returned])
        out = SimpleNamespace(loss=torch.zeros(()), logits=torch.zeros(1))
        returned.append(weakref.ref(out.logits))
        return out

    assert losses_of(model, None, case, Recorder()) is None
    losses = losses_of(model, None, replace(case, stack=replace(case.stack, keeps_outputs=True)), Recorder())
    assert losses is not None
    for number in range(3):
        losses({}, number)
    assert alive == [[], [True], [False, True]]


def test_a_micro_step_goes_forward_and_backward() -> None:
    """And its loss is scaled."""
    weight, recorder = nn.Parameter(torch.ones(3)), Recorder()
    seen: list[int] = []
    scaler = torch.amp.GradScaler("cpu", 8.0)
    batch: Any = SimpleNamespace(make=lambda: {"x": torch.full((3,), 2.0)}, scaler=scaler, device="cpu")

    def losses(inputs: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        seen.append(number)
        return (weight * inputs["x"]).sum()

    with recorder:
        micro_step(None, recorder, 2, batch, losses)
    assert seen == [2]
    assert weight.grad is not None
    assert weight.grad.tolist() == [8.0 * 2.0] * 3
    stages = dict.fromkeys((each.place.stage, each.place.micro_step) for each in recorder.trace.records)
    assert list(stages) == [("forward", 2), ("backward", 2)]


@pytest.mark.parametrize("scales", [False, True])
def test_gradients_are_unscaled_before_their_norm_is_clipped(scales: bool) -> None:
    """A gradient of (3, 4) has norm 5 and is clipped to norm 1; afterwards there is none."""
    weight = nn.Parameter(torch.zeros(2))
    model = nn.Module()
    model.weight = weight
    scaler = torch.amp.GradScaler("cpu", 8.0) if scales else None
    loss = (weight * torch.tensor([3.0, 4.0])).sum()
    (scaler.scale(loss) if scaler else loss).backward()
    _optimizer_step(model, torch.optim.SGD([weight], lr=1.0), scaler)
    assert weight.tolist() == pytest.approx([-0.6, -0.8], abs=1e-4)
    assert weight.grad is None


def test_a_plain_job_leaves_the_loss_to_the_model() -> None:
    """And one with weights for each token does not."""
    case, recorder = job(), Recorder()
    assert losses_of(None, None, case, recorder) is None
    weighted = replace(case, stack=replace(case.stack, loss_weights="divergence"))
    assert losses_of(None, None, weighted, recorder) is not None
