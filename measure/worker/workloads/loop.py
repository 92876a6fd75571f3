"""The workload ``loop``: a training step in plain torch, the floor under every trainer."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers.integrations.liger import apply_liger_kernel

from measure.recipe.trained import checkpoint_activations
from measure.recipe.trainer_arguments import LIGER_LOSS_ONLY
from measure.run.cases.lengths import MicroBatch
from measure.run.pace import Pace
from measure.worker.workloads.engine import Engine
from measure.worker.workloads.engines import open_engine
from measure.worker.workloads.feed import Collator, Feed
from measure.worker.workloads.random_model import build_model
from measure.worker.workloads.task import Task


def run_loop(task: Task) -> None:
    """Build the model, step until the pace says enough, evaluate once, and save where that is asked."""
    recipe = task.scenario.recipe
    model = build_model(task.case, task.scenario, task.probe.device, task.phases)
    if recipe.loss == "liger":
        apply_liger_kernel(model, LIGER_LOSS_ONLY)  # type: ignore[no-untyped-call]
    checkpoint_activations(model, task.scenario)
    mark_loss(model, task)
    engine = open_engine(model, task)
    task.say_model(model, engine.running, **engine.configs)
    vocabulary = model.config.get_text_config().vocab_size
    feed = Feed(task.batches(), Collator(task.scenario, vocabulary, task.case.options.seed))
    pace = Pace(task.case.options)
    while not engine.agree(pace.enough):
        _step(task, engine, feed, pace)
    _evaluate(task, engine, feed)
    if task.case.options.save:
        task.phases.enter("save")
        with tempfile.TemporaryDirectory(dir=task.folder) as folder:
            engine.save(Path(folder))
    task.phases.say_readings()


def _step(task: Task, engine: Engine, feed: Feed, pace: Pace) -> None:
    """One optimizer step with all its micro-steps."""
    task.probe.start_clock()
    used: list[MicroBatch] = []
    count = int(task.scenario.recipe.batch.grad_accum)
    for number in range(count):
        task.phases.enter("forward")
        batch, tensors = feed.next()
        used.append(batch)
        inputs = {name: tensor.to(task.probe.device, non_blocking=True) for name, tensor in tensors.items()}
        loss = engine.forward(inputs, last=number == count - 1)
        task.end_loss()
        engine.backward(loss)
        del loss, inputs
        task.phases.leave()
    task.phases.enter("optimizer_step")
    engine.step()
    task.phases.leave()
    task.say_step(pace, task.probe.stop_clock(), used)


def _evaluate(task: Task, engine: Engine, feed: Feed) -> None:
    """One forward pass without gradients on the worst batch."""
    gc.collect()
    task.phases.enter("eval")
    engine.module.eval()
    _, tensors = feed.next()
    with torch.no_grad():
        engine.forward({name: tensor.to(task.probe.device) for name, tensor in tensors.items()}, last=True)
    engine.module.train()
    task.phases.leave()


def mark_loss(model: Any, task: Task) -> None:
    """Let the phase ``loss`` begin where the output projection does: full-size logits live from there on.

    Liger's loss takes the projection's weights and never calls it; it begins where the decoder ends.
    """
    if task.scenario.recipe.loss == "liger":
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        base.get_decoder().register_forward_hook(lambda *given: task.begin_loss(given[2][0]))
        return
    head = model.get_output_embeddings()
    if head is not None:
        head.register_forward_pre_hook(lambda _, given: task.begin_loss(given[0]))
