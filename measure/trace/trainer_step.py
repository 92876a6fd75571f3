"""One training step as the Hugging Face Trainer runs it, and the micro-step after it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any, Protocol

import torch
from accelerate.utils.operations import convert_outputs_to_fp32  # type: ignore[import-untyped]
from torch import nn

from measure.recipe.adapters import DTYPES
from measure.recipe.engine_configs import MAX_GRAD_NORM
from measure.recipe.fused_head import add_fused_head
from measure.recipe.losses import install_loss
from measure.recipe.optimizers import make_optimizer
from measure.recipe.preference_steps import Passes, Stage, disable_dropout, preference_loss
from measure.recipe.weighted_loss import compared_loss, guessed_loss, weighted_loss
from measure.trace.record import Role
from measure.trace.record import Stage as TracedStage
from planner.domain.scenario import Scenario


class Listener(AbstractContextManager[Any], Protocol):
    """What is told where the step is, and knows the device on which the model is."""

    device: str

    def enter_stage(self, stage: TracedStage, micro_step: int = 0) -> None:
        """A pass begins."""

    def mark(self, tensor: torch.Tensor, role: Role) -> None:
        """A tensor has this role."""

    def close(self) -> None:
        """The step ends."""


def run_step(model: Any, scenario: Scenario, recorder: Listener, reference: Any = None) -> None:
    """Two micro-steps with an optimizer step between them; with gradient accumulation two before it and two
    behind it, of which the second ones find gradients.

    Micro-step 0 starts with neither gradients nor states, as training does.  ``reference``: the model that a
    policy is compared with, where that is not the same one without its adapters.
    """
    recipe = scenario.recipe
    for each in (model, reference):
        if each is not None:
            prepare(each, scenario, recorder.device)
    optimizer = make_optimizer(model, recipe)
    # The Trainer scales the loss under fp16 autocast (accelerate 1.15 accelerator.py, ``native_amp``).
    scaler = torch.amp.GradScaler(recorder.device) if recipe.numerics.precision == "fp16-mixed" else None
    batch = Inputs(scenario, model.config.get_text_config().vocab_size, scaler, recorder.device)
    losses = losses_of(model, reference, scenario, recorder)
    _mark_gradients(model, recorder)
    accumulated = min(int(recipe.batch.grad_accum), 2)
    with recorder:
        for number in range(2 * accumulated):
            if number == accumulated:
                recorder.enter_stage("optimizer_step")
                _optimizer_step(model, optimizer, scaler)
                _mark_states(optimizer, recorder)
            micro_step(model, recorder, number, batch, losses=losses)
        recorder.close()


class Inputs:
    """What the data collator hands over, and what scales the loss."""

    def __init__(
        self,
        scenario: Scenario,
        vocabulary: int,
        scaler: torch.amp.GradScaler | None = None,
        device: str = "cpu",
    ) -> None:
        recipe, stack = scenario.recipe, scenario.stack
        rows, length = int(recipe.batch.rows), int(recipe.batch.seq_len)
        self.shape = (1, rows * length) if stack.joins_rows(recipe) else (rows, length)
        self.sample_tokens = -(-length // 2) if stack.places_samples and stack.masks_samples(recipe) else None
        self.vocabulary = vocabulary
        self.labels = scenario.model.head.out_features if recipe.task == "classify" else 0
        self.scaler, self.device = scaler, device

    def make(self) -> dict[str, torch.Tensor]:
        """One micro-batch."""
        device = self.device
        ids = torch.randint(0, self.vocabulary, self.shape, device=device)
        labels = torch.randint(0, self.vocabulary, self.shape, device=device)
        if self.labels:
            labels = torch.randint(0, self.labels, self.shape[:1], device=device)
        if self.sample_tokens is None:
            more = {"attention_mask": torch.ones(self.shape, dtype=torch.int64, device=device)}
        else:
            # Samples of half a row, whose positions tell where each begins.
            positions = torch.arange(self.shape[1], device=device).expand(self.shape)
            more = {"position_ids": positions % self.sample_tokens}
        return {"input_ids": ids, **more, "labels": labels}


Losses = Callable[[dict[str, torch.Tensor], int], torch.Tensor]
"""The loss of one micro-batch, from what the data collator hands over and the number of the micro-step."""


def prepare(model: Any, scenario: Scenario, device: str = "cpu") -> None:
    """The forward that the trainer calls: with its loss, and under autocast where nobody else casts."""
    recipe = scenario.recipe
    if recipe.has_own_loss:
        if not scenario.model.value_head:
            disable_dropout(model)
        if recipe.loss == "chunked":
            add_fused_head(model)
    elif _in_tiles(scenario):
        add_fused_head(model)
    else:
        install_loss(model, recipe)
    if recipe.numerics.mixed:
        _wrap_forward(model, DTYPES[recipe.numerics.compute_dtype], device)


def _in_tiles(scenario: Scenario) -> bool:
    return scenario.recipe.loss == "chunked" and scenario.stack.loss_pieces == "tiles"


def losses_of(model: Any, reference: Any, scenario: Scenario, recorder: Listener) -> Losses | None:
    """The loss of a training from preferences, or with a weight for each token;
    ``None`` where the model has the loss itself.
    """
    recipe, weights = scenario.recipe, scenario.stack.loss_weights
    if weights == "divergence":

        def compared(inputs: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            recorder.enter_stage("reference", number)
            return compared_loss(model, reference, inputs, lambda: recorder.enter_stage("forward", number))

        return compared
    if weights == "masked_tokens":
        return lambda inputs, _: guessed_loss(model, inputs)
    if weights != "none":
        return lambda inputs, _: weighted_loss(model, inputs, weights)
    if _in_tiles(scenario) and not recipe.has_own_loss:
        return lambda inputs, _: -model(**inputs).log_probs.sum()
    if not recipe.has_own_loss:
        return _keeping(model) if scenario.stack.keeps_outputs else None

    def losses(inputs: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        def enter(stage: Stage) -> None:
            recorder.enter_stage(stage, number)

        stack = scenario.stack
        passes = Passes(model, reference, recipe, stack.pair_logps, stack.chosen_likelihood, enter)
        return preference_loss(passes, inputs)

    return losses


def _keeping(model: Any) -> Losses:
    """The loss of a loop whose variable refers to what the model returned until it returns again."""
    kept: list[Any] = []

    def losses(inputs: dict[str, torch.Tensor], _number: int) -> torch.Tensor:
        kept[:] = [model(**inputs)]
        loss: torch.Tensor = kept[0].loss
        return loss

    return losses


def micro_step(
    model: Any,
    recorder: Listener,
    number: int,
    batch: Inputs,
    losses: Losses | None = None,
) -> None:
    """Forward, loss and backward of one micro-batch; ``losses``: instead of the model's own."""
    recorder.enter_stage("forward", number)
    inputs = batch.make()
    count = torch.ones((), dtype=torch.int64, device=batch.device)
    loss = model(**inputs, num_items_in_batch=count).loss if losses is None else losses(inputs, number)
    if batch.scaler is not None:
        loss = batch.scaler.scale(loss)
    recorder.enter_stage("backward", number)
    loss.backward()
    # What goes with the graph goes at once, when no layer runs any more: contexts hold tensors until then.
    recorder.enter_stage("backward", number)
    del loss, inputs, count
    gc.collect()


def _optimizer_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None
) -> None:
    """Clip, then update; scaled gradients are unscaled in place first, before their norm is taken."""
    trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
    if scaler is not None:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(trained, MAX_GRAD_NORM, foreach=True)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad(set_to_none=True)


def _mark_gradients(model: nn.Module, recorder: Listener) -> None:
    def mark(tensor: torch.Tensor) -> None:
        if tensor.grad is not None:
            recorder.mark(tensor.grad, "gradients")

    for tensor in model.parameters():
        if tensor.requires_grad:
            hook: Any = tensor.register_post_accumulate_grad_hook
            hook(mark)


def _mark_states(optimizer: torch.optim.Optimizer, recorder: Listener) -> None:
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                recorder.mark(value, "optimizer_states")


def _wrap_forward(model: Any, dtype: torch.dtype, device: str) -> None:
    """Autocast around the forward pass and outputs in fp32,
    as accelerate's ``prepare_model`` does (accelerator.py).
    """
    autocast = torch.autocast(device, dtype=dtype, cache_enabled=True)
    inner = model.forward.__func__
    model.forward = MethodType(convert_outputs_to_fp32(autocast(inner)), model)
