"""The workload ``trainer``: the Hugging Face Trainer itself,
so that its copies and upcasts are in the numbers.
"""

from __future__ import annotations

import copy
import tempfile
from itertools import cycle
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset, SequentialSampler

from measure.recipe.trainer_arguments import sharding_settings, trainer_arguments
from measure.run.cases.lengths import MicroBatch
from measure.run.pace import Pace
from measure.worker.workloads.engine import EngineMismatchError
from measure.worker.workloads.feed import Collator
from measure.worker.workloads.loop import mark_loss
from measure.worker.workloads.random_model import build_model
from measure.worker.workloads.task import Task
from planner.domain.recipes.recipe import Recipe


def run_trainer(task: Task) -> None:
    """Train until the pace says enough, evaluate on the worst batch, and save where that is asked.

    Raises:
        EngineMismatchError: the Trainer wrapped the model in another engine than the one that was asked for.
    """
    batches = task.batches()
    with tempfile.TemporaryDirectory(prefix="trainer-", dir=task.folder) as folder:
        options = task.case.options
        configs = sharding_settings(task.scenario, nvme_path=options.nvme_path)
        # Before the model: under ZeRO-3 they decide how a checkpoint is read.
        arguments = trainer_arguments(
            task.scenario,
            folder,
            max_steps=options.warmup + options.max_steps,
            use_cpu=task.probe.device.type == "cpu",
            remove_unused_columns=False,
            prediction_loss_only=True,
            seed=options.seed,
            # The Trainer fills in and changes what it is given.
            **copy.deepcopy(configs),
        )
        model = build_model(task.case, task.scenario, task.probe.device, task.phases)
        mark_loss(model, task)
        trainer = _MeasuredTrainer(
            task,
            batches,
            model=model,
            args=arguments,
            train_dataset=_Rows(batches, _micro_steps(task), task.scenario.hardware.world_size),
            data_collator=_Collator(task, model.config.get_text_config().vocab_size),
        )
        trainer.configs = configs
        trainer.train()
        _evaluate(task, trainer, batches[0])
        if task.case.options.save:
            task.phases.enter("save")
            trainer.save_model(folder)
    task.phases.say_readings()


def _micro_steps(task: Task) -> int:
    options = task.case.options
    return (options.warmup + options.max_steps) * int(task.scenario.recipe.batch.grad_accum)


class _Rows(Dataset[dict[str, int]]):
    """Samples in the order of the plan; only their lengths matter, the ids are made when they are collated.

    Ranks take batches in turn, so each one is there once for every rank.
    """

    def __init__(self, batches: tuple[MicroBatch, ...], micro_steps: int, ranks: int) -> None:
        used = (
            batch for batch, _ in zip(cycle(batches), range(micro_steps), strict=False) for _ in range(ranks)
        )
        self._rows = [
            {"length": length, "width": batch.width_tokens} for batch in used for length in batch.lengths
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, int]:
        return self._rows[index]


class _Collator:
    """Rows -> padded tensors."""

    def __init__(self, task: Task, vocabulary: int) -> None:
        self._collator = Collator(task.scenario, vocabulary, task.case.options.seed)

    def __call__(self, rows: list[dict[str, int]]) -> dict[str, torch.Tensor]:
        batch = MicroBatch(tuple(row["length"] for row in rows), rows[0]["width"])
        return self._collator.tensors(batch)


_TrainerBase: Any = transformers.Trainer


class _MeasuredTrainer(_TrainerBase):  # type: ignore[misc]
    """The Trainer, with marks between the phases; it computes nothing of its own."""

    def __init__(self, task: Task, batches: tuple[MicroBatch, ...], **settings: Any) -> None:
        super().__init__(**settings)
        self._task = task
        self._planned = cycle(batches)
        self._used: list[MicroBatch] = []
        self._pace = Pace(task.case.options)
        self.configs: dict[str, Any] = {}
        self.add_callback(_StepMarks(self))

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Forward and backward of one micro-batch."""
        self._used.append(next(self._planned))
        self._task.phases.enter("forward")
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self._task.phases.leave()
        if self.accelerator.sync_gradients and not self._task.scenario.recipe.uses_deepspeed:
            self._task.phases.enter("optimizer_step")
        return loss

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Forward and loss; what follows is the backward pass."""
        result = super().compute_loss(*args, **kwargs)
        if self.model.training:
            self._task.end_loss()
        return result

    def begin(self) -> None:
        """Training begins: all is wrapped."""
        running = self.model_wrapped
        check_engine(self._task.scenario.recipe, running, self.model)
        if self._task.scenario.recipe.uses_deepspeed:
            mark_engine_step(running, self._task)
        self._task.say_model(self.model, running, **self.configs)

    def begin_step(self) -> None:
        """An optimizer step begins."""
        self._used.clear()
        self._task.probe.start_clock()

    def end_step(self) -> bool:
        """An optimizer step is over; returns whether that was the last."""
        self._task.phases.leave()
        self._task.say_step(self._pace, self._task.probe.stop_clock(), self._used)
        enough = self._pace.enough
        if self._task.scenario.hardware.world_size == 1:
            return enough
        from measure.worker.workloads.sharded import agreed

        return agreed(enough, self._task.probe.device)


def mark_engine_step(engine: Any, task: Task) -> None:
    """Let the phase ``optimizer_step`` begin where DeepSpeed steps:
    accelerate lets it do so at the end of its backward pass.

    Source: accelerate 1.15 utils/deepspeed.py DeepSpeedEngineWrapper.backward.
    """
    step = engine.step

    def marked(*args: Any, **kwargs: Any) -> Any:
        task.phases.enter("optimizer_step")
        return step(*args, **kwargs)

    engine.step = marked


def check_engine(recipe: Recipe, running: Any, model: Any) -> None:
    """Check what the Trainer wrapped the model in, because it falls back without a word.

    Raises:
        EngineMismatchError: another engine than the one that was asked for.
    """
    classes = [each.__name__ for each in type(running).__mro__]
    if not recipe.sharding.communicates:
        right = running is model
    elif recipe.uses_deepspeed:
        right = (
            "DeepSpeedEngine" in classes and running.zero_optimization_stage() == recipe.sharding.zero_stage
        )
    else:
        wanted = {"ddp": "DistributedDataParallel", "fsdp1": "FullyShardedDataParallel"}.get(
            recipe.sharding.name, "FSDPModule"
        )
        right = wanted in classes
    if not right:
        raise EngineMismatchError(
            f"the Trainer wrapped the model in {classes[0]} where sharding {recipe.sharding} was asked for"
        )


class _StepMarks(transformers.TrainerCallback):
    """Tells the trainer where its steps begin and end."""

    def __init__(self, trainer: _MeasuredTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """All is prepared."""
        self._trainer.begin()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """A step begins."""
        self._trainer.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
        """A step is over."""
        control.should_training_stop = self._trainer.end_step() or control.should_training_stop
        return control


def _evaluate(task: Task, trainer: Any, worst: MicroBatch) -> None:
    task.phases.enter("eval")
    trainer.evaluate(eval_dataset=_Rows((worst,), 1, task.scenario.hardware.world_size))
    task.phases.leave()
