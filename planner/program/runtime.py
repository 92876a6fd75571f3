"""Who runs a step: plain PyTorch here; engines that divide weights, gradients or states override what they do otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from planner.domain.term import Phase
from planner.program.job import Job
from planner.program.load import load
from planner.program.optimizer import optimizer_step
from planner.program.parameters import Weight
from planner.program.stream import Instance, Stream, Trained, instances
from planner.program.template import (
    BACKWARD,
    BACKWARD_END,
    FORWARD,
    FORWARD_END,
    FORWARD_NEXT,
    FORWARD_OUT,
    RETURNS_AGAIN,
    Template,
)


@dataclass(frozen=True, slots=True)
class Part:
    """``count`` parts in a row that are alike: the ends of the model, or layers."""

    name: str
    template: Template
    count: int


@dataclass(frozen=True, slots=True)
class Pass:
    """One micro-step: the phases of its forward, loss and backward, and whether the optimizer steps after it."""

    forward: Phase
    loss: Phase
    backward: Phase
    is_last: bool


class Runtime:
    """One process that trains on its own; writes the requests of a job to ``stream``.

    ``parts``: of the model, known before it is loaded.
    ``adds_gradients``: gradients stay where the backward pass made them, and those of later micro-steps are added.
    """

    adds_gradients = True

    def __init__(self, stream: Stream, job: Job) -> None:
        self.stream = stream
        self.job = job
        self.parts: list[Part] = []
        self.weights: list[Weight] = []
        self.states: list[int] = []
        self._bound: list[int] = []

    def load(self) -> None:
        """Weights and adapters come to the card, and whatever is set up before the first step."""
        self.weights = load(self.stream, self.job)

    def micro_step(self, parts: list[Part], phases: Pass) -> list[Trained]:
        """Forward, loss and backward of one micro-batch; gives the parameters whose gradients it made."""
        stream = self.stream
        made = instances(stream, ((part.name, part.template, part.count) for part in parts))
        stream.enter(phases.forward)
        self.forward(made[0])
        for before, each in pairwise(made[:-1]):
            self.forward(each)
            stream.events += before.events(FORWARD_NEXT)
        stream.events += made[-2].events(FORWARD_NEXT)
        stream.enter(phases.loss)
        self.forward(made[-1])
        for each in made:
            stream.events += each.events(FORWARD_END)
        stream.events += made[-1].events(FORWARD_OUT)
        stream.events += self._bound
        self._bound = made[-1].events(RETURNS_AGAIN)
        self.backward(made[-1])
        stream.enter(phases.backward)
        for each in reversed(made[:-1]):
            self.backward(each)
        self.end_of_backward(phases)
        for each in made:
            stream.events += each.events(BACKWARD_END)
        return [*_trained(made)]

    def evaluate(self, parts: list[Part]) -> None:
        """The forward pass of one batch, of parts that were made without gradients."""
        made = instances(self.stream, ((part.name, part.template, part.count) for part in parts))
        self.stream.enter("eval")
        for each in made:
            self.forward(each)
            self.stream.events += each.events(FORWARD_NEXT)
        for each in made:
            self.stream.events += each.events(FORWARD_END)

    def forward(self, part: Instance) -> None:
        """The forward pass of one part."""
        self.stream.events += part.events(FORWARD)

    def backward(self, part: Instance) -> None:
        """The backward pass of one part."""
        self.stream.events += part.events(BACKWARD)

    def end_of_backward(self, phases: Pass) -> None:
        """What an engine does when all gradients are there, before the graph goes."""

    def optimizer_step(self, trained: list[Trained]) -> None:
        """Update the parameters and drop their gradients."""
        self.stream.enter("optimizer_step")
        weights = [each for each in self.weights if each.trained]
        self.states += optimizer_step(self.stream, self.job, weights, first=not self.states)
        for each in trained:
            self.stream.free(each.gradient_slot)


def _trained(made: list[Instance]) -> Iterable[Trained]:
    for each in made:
        for unit, count, dtype, slot, name in each.template.gradients:
            lies_at = each.slot(slot)
            if lies_at is not None:
                yield Trained(unit, count, dtype, lies_at, f"{each.name} {name}")
