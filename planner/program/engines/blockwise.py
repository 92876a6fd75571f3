"""BAdam: one layer after the other is trained, with copies of its parameters and gradients in fp32.

The layer that is counted is the one of ``train_layers``.
Source: badam 1.4 block_optim.py BlockOptimizer (``_switch_trainable_params_single_gpu``, ``_grad_to_hp``,
``_update_param``, ``step``); llamafactory 0.9.5 train/trainer_utils.py _create_badam_optimizer, whose base is
torch's AdamW.
Ignored: that copies and states of the layer before are there while the next layer is copied,
which is less than a step takes.
"""

from __future__ import annotations

from dataclasses import replace

from planner.program.job import Job
from planner.program.ops.tensors import ELEMENT_BYTES, Unit
from planner.program.parameters import Weight
from planner.program.request_stream import RequestStream
from planner.program.runtime import Runtime
from planner.program.update.optimizer import optimizer_step

_FP32 = ELEMENT_BYTES["fp32"]


class Blockwise(Runtime):
    """One process that updates fp32 copies of the layer that it trains."""

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self._copies: list[Weight] = []

    def load(self) -> None:
        """The copies are made with the optimizer, by way of a clone."""
        super().load()
        for each in self.weights:
            if each.trained:
                clone = self._take(each.unit, each.unit_bytes, each.name, "clone")
                copy = self.stream.allocate(
                    each.unit, _FP32 * each.count, "master_weights", ("optimizer", each.name, "float")
                )
                self.stream.free(clone)
                self._copies.append(replace(each, dtype="fp32", slot=copy))

    def optimizer_step(self, gradients: list[int]) -> None:
        """Gradients become fp32, one after the other; new weights are copied back;
        then the cache is emptied.
        """
        self.stream.enter("optimizer_step")
        wide = []
        for slot, each in zip(gradients, self._copies, strict=True):
            wide.append(self._take(each.unit, _FP32 * each.count, each.name, "float"))
            self.stream.free(slot)
        self.states += optimizer_step(self.stream, self.job, self._copies, first=not self.states)
        for weight in self.weights:
            if weight.trained:
                self.stream.free(self._take(weight.unit, weight.unit_bytes, weight.name, "to"))
        self.free(*wide)
        self.stream.empty_cache()

    def _take(self, unit: Unit, unit_bytes: float, name: str, op: str) -> int:
        return self.stream.allocate(unit, unit_bytes, "optimizer_temporaries", ("optimizer", name, op))
