"""An optimizer that steps inside of the backward pass: each parameter as soon as its gradient is there,
which then goes.

Source: torchtune 0.6.1 training/memory.py register_optim_in_bwd_hooks; llamafactory 0.9.5
train/trainer_utils.py (``register_post_accumulate_grad_hook``, an optimizer for each parameter); transformers
5.23 trainer_optimizer.py _setup_low_rank_optimizer.
"""

from __future__ import annotations

from planner.program.job import Job
from planner.program.ops.tensors import Mark, Unit
from planner.program.parameters import Kind, Weight
from planner.program.request_stream import Instance, RequestStream
from planner.program.runtime import Runtime
from planner.program.update.optimizer import optimizer_step


class Layerwise(Runtime):
    """One process whose gradients do not outlive their parameter's step."""

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self._named: dict[tuple[str, str], list[Weight]] = {}
        self._stepped: set[tuple[str, int]] = set()

    def load(self) -> None:
        """Weights, which the marks of the backward pass know by part and module."""
        super().load()
        for each in self.weights:
            part, _, name = each.name.rpartition(" ")
            if each.name == "head":
                part, name = "head", self.job.model.head.name
            self._named.setdefault((part, name), []).append(each)

    def backward(self, part: Instance) -> None:
        """The backward pass of one part; at each gradient the step of its parameter."""
        for events, mark in part.between_marks("backward", ("gradient",)):
            self.stream.events += events
            if mark is not None:
                self._step(part, mark)

    def _step(self, part: Instance, mark: Mark) -> None:
        parameter = part.template.parameters[mark.number]
        slot = None if mark.slot is None else part.slot(mark.slot)
        assert slot is not None
        module = part.template.modules[parameter.module][-1:]
        named = self._named.get((part.name, module[0]), []) if module else []
        weight = next(
            (each for each in named if each.unit is parameter.unit and each.count == parameter.count), None
        )
        if weight is None:
            kind: Kind = "table" if part.name in ("embeddings", "head") else "norm"
            weight = Weight(
                part.name, kind, ((Unit.ONE, parameter.count),), parameter.dtype, trained=True, outside=True
            )
        key = (part.name, mark.number)
        self.states += optimizer_step(self.stream, self.job, [weight], first=key not in self._stepped)
        self._stepped.add(key)
        self.stream.free(slot)

    def optimizer_step(self, gradients: list[int]) -> None:
        """Everything is done: the Trainer's optimizer is a dummy."""
        del gradients
        self.stream.enter("optimizer_step")
