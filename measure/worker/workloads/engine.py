"""Who runs the step: plain torch, or an engine that shards.
The loop talks to all of them in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch

from measure.recipe.adapters import DTYPES
from measure.recipe.engine_configs import MAX_GRAD_NORM
from measure.recipe.optimizers import make_optimizer
from measure.worker.workloads.chunked import chunked_loss
from measure.worker.workloads.task import Task
from planner.domain.recipes.recipe import Recipe


class EngineMismatchError(RuntimeError):
    """Another engine runs than the one that was asked for,
    so nothing that it gives may be recorded as a result.
    """


class Engine(Protocol):
    """Forward, backward and optimizer step of one rank."""

    @property
    def running(self) -> Any:
        """The object whose class says which engine runs."""

    @property
    def module(self) -> torch.nn.Module:
        """The model, for switching between training and evaluation."""

    @property
    def configs(self) -> Mapping[str, Any]:
        """Configuration files that were generated, by name."""

    def forward(self, inputs: dict[str, torch.Tensor], *, last: bool) -> torch.Tensor:
        """Loss of one micro-batch; ``last``: the optimizer steps after it."""

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of one micro-batch."""

    def step(self) -> None:
        """Clip, update, and drop the gradients."""

    def agree(self, finished: bool) -> bool:
        """Whether all ranks stop now: rank 0 decides."""

    def save(self, folder: Path) -> None:
        """Write what training would save."""


class PlainEngine:
    """Plain torch on one device."""

    def __init__(self, model: Any, task: Task) -> None:
        self._model = model
        self._recipe = task.scenario.recipe
        self._device = task.probe.device
        self._before_head = task.begin_loss
        self._optimizer = make_optimizer(model, self._recipe)
        self._scaler: Any = torch.amp.GradScaler(
            self._device.type, enabled=self._recipe.numerics.precision == "fp16-mixed"
        )

    @property
    def running(self) -> Any:
        """The model itself."""
        return self._model

    @property
    def module(self) -> torch.nn.Module:
        """The model."""
        return self._model  # type: ignore[no-any-return]

    @property
    def configs(self) -> Mapping[str, Any]:
        """None are generated."""
        return {}

    def forward(self, inputs: dict[str, torch.Tensor], *, last: bool) -> torch.Tensor:  # noqa: ARG002
        """Loss of one micro-batch, scaled to its share of the step."""
        with autocast(self._recipe, self._device):
            loss = self._loss(inputs)
        return loss / int(self._recipe.batch.grad_accum)

    def _loss(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        if self._recipe.loss == "chunked":
            return chunked_loss(self._model, inputs, before_head=self._before_head)
        loss: torch.Tensor = self._model(**inputs).loss
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of one micro-batch."""
        self._scaler.scale(loss).backward()

    def step(self) -> None:
        """Clip, update, and drop the gradients."""
        self._scaler.unscale_(self._optimizer)
        trained = [tensor for tensor in self._model.parameters() if tensor.requires_grad]
        torch.nn.utils.clip_grad_norm_(trained, MAX_GRAD_NORM)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)

    def agree(self, finished: bool) -> bool:
        """One rank decides for itself."""
        return finished

    def save(self, folder: Path) -> None:
        """What ``save_pretrained`` writes: the adapters, or the whole model."""
        self._model.save_pretrained(folder)


def autocast(recipe: Recipe, device: torch.device) -> AbstractContextManager[None]:
    """Autocast where the precision is mixed and no engine keeps 16-bit weights itself."""
    if not recipe.numerics.mixed or recipe.uses_deepspeed:
        return nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[recipe.numerics.compute_dtype])
