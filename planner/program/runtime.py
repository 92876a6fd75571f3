"""Who runs a step: plain PyTorch here; engines that divide weights,
gradients or states override what they do otherwise.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.domain.term import Phase
from planner.intake.train_layers import drawn
from planner.program.head.generation import hand_over
from planner.program.head.vllm import put_to_sleep, wake
from planner.program.job import Job
from planner.program.load import load
from planner.program.ops.tensors import Unit
from planner.program.ops.unit_names import EVALUATED, PROMPTED, SAMPLED, SCORED
from planner.program.parameters import Weight
from planner.program.recorded_part import Template
from planner.program.request_stream import Instance, RequestStream, instances
from planner.program.update.optimizer import make_states, optimizer_step


@dataclass(frozen=True, slots=True)
class Part:
    """``count`` parts in a row that are alike: the ends of the model, or layers."""

    name: str
    template: Template
    count: int


def _in_units(parts: Iterable[Part], units: Mapping[Unit, Unit]) -> list[Part]:
    """The same parts with the sizes of another batch."""
    parts = list(parts)
    made = {id(part.template): part.template.in_units(units) for part in parts}
    return [replace(part, template=made[id(part.template)]) for part in parts]


@dataclass(frozen=True, slots=True)
class Pass:
    """One micro-step: the phases of its forward, loss and backward,
    and whether the optimizer steps after it.
    """

    forward: Phase
    loss: Phase
    backward: Phase
    is_last: bool


@dataclass(frozen=True, slots=True)
class Generation:
    """What runs before the micro-steps of a task that generates, all of it without gradients.

    ``prompts`` and ``token``: the pass over the prompts, and that of one more token; empty where another
    program generates.  ``asides``: passes of the policy over a micro-batch of whole sequences.
    ``reference``: the same of what it is compared with.  ``scores``: the pass of a reward model over all
    sequences at once.  Each is empty where there is none.
    """

    prompts: Sequence[Part]
    token: Sequence[Part]
    asides: tuple[list[Part], ...]
    reference: Sequence[Part] = ()
    scores: Sequence[Part] = ()


class Runtime:
    """One process that trains on its own; writes the requests of a job to ``stream``.

    ``parts``: of the model, known before it is loaded.  ``before`` and ``after``: passes without gradients
    that each micro-step runs before the forward pass, and between it and the loss.  ``itself``: which of
    these is one of the policy.  ``compared``: the pass of what the policy is compared with, and ``scoring``
    that of a reward model.  Each is empty without one.
    ``adds_gradients``: gradients stay where the backward pass made them, and those of later micro-steps are
    added.
    ``joins_gradients``: a micro-step makes its own in whole beside those of the ones before, which it is the
    last one that divides.  ``learns_order``: a second pass is unlike the first one, because the order of
    modules is known by then.  ``receives_ahead``: a pipeline makes what inputs and gradients of all
    micro-batches arrive in before the first one, not for each one when it comes.
    """

    adds_gradients, joins_gradients, learns_order, receives_ahead = True, False, False, True

    def __init__(self, stream: RequestStream, job: Job) -> None:
        self.stream = stream
        self.job = job
        self.parts: list[Part] = []
        self.before: tuple[list[Part], ...] = ()
        self.after: tuple[list[Part], ...] = ()
        self.itself: Sequence[Part] = ()
        self.compared: Sequence[Part] = ()
        self.scoring: Sequence[Part] = ()
        self.weights: list[Weight] = []
        self.states: list[int] = []
        # The graph that the loop still refers to.
        self._bound: list[Instance] = []
        # When the model returns again, or what it is compared with, the loop lets go of these.
        self._returned = self._beside = array("q")

    def load(self) -> None:
        """Weights and adapters come to the card, and whatever is set up before the first step."""
        self.weights = load(self.stream, self.job)

    def micro_step(self, parts: list[Part], phases: Pass) -> list[int]:
        """Forward, loss and backward of one micro-batch; gives the slots of the gradients that it made."""
        stream = self.stream
        made = instances(stream, ((part.name, part.template, part.count) for part in parts))
        stream.enter(phases.forward)
        if self.job.stack.offloads_saved and self.job.recipe.offloads_activations:
            # trl 1.9.0 and 1.16.0 models/activation_offloading.py __enter__, where bitsandbytes is imported,
            # which PEFT does.
            stream.empty_cache()
        first = [self._ask(given) for given in self.before]
        self.forward(made[0])
        for before, each in pairwise(made[:-1]):
            self.forward(each)
            stream.events += before.events("forward_next")
        stream.events += made[-2].events("forward_next")
        stream.enter(phases.loss)
        self._loss(made, first)
        stream.begin_engine()
        self.backward(made[-1])
        stream.enter(phases.backward)
        for each, behind in zip(reversed(made[:-1]), reversed(made[1:]), strict=True):
            self.backward(each)
            stream.events += behind.events("backward_next")
        stream.events += made[0].events("backward_next")
        for each in made:
            stream.events += each.events("backward_out")
        self.end_of_backward(phases)
        if self.job.stack.binds_loss and not self.job.stack.step_in_function:
            self._bound = made
            return [*gradients_of(made)]
        for each in made:
            stream.events += each.events("backward_end")
        return [*gradients_of(made)]

    def _loss(self, made: list[Instance], first: list[list[Instance]]) -> None:
        """The head and the loss; then the graph of the micro-step before goes,
        where the loop refers to it until now.

        ``first``: passes that ran before this one.
        """
        stream = self.stream
        bound, self._bound = self._bound, []
        for each in bound[-1:]:
            stream.events += each.events("backward_end")
        self.forward(made[-1])
        if not self._waits:
            self._end_autocast(made)
        stream.events += made[-1].events("forward_out")
        stream.events += self._returned
        self._returned = made[-1].events("returns_again")
        for each in bound[:-1]:
            stream.events += each.events("backward_end")
        for aside in first:
            self.let_go(aside)
        asides = self._ask_after(made)
        stream.events += self._beside
        self._beside = array("q", [event for each in asides for event in each[-1].events("returns_again")])
        stream.events += made[-1].events("forward_loss")
        if self._waits:
            self._end_autocast(made)
        if self.job.recipe.teacher is not None and not self.job.stack.distillation.endswith("_in_pieces"):
            # trl 1.16.0 experimental/gkd/gkd_trainer.py compute_loss.
            stream.empty_cache()
        for aside in asides:
            self.let_go(aside)

    @property
    def _waits(self) -> bool:
        """Whether the trainer runs the model, the reference and the loss under an autocast of its own.

        Source: trl 0.12.1 and 0.24.0 trainer/dpo_trainer.py, kto_trainer.py, orpo_trainer.py, cpo_trainer.py
        compute_loss, where peft_module_casting_to_bf16 ran (4 bits and bf16); torch 2.13
        aten/src/ATen/autocast_mode.cpp clears its cache where the outermost region ends.
        """
        recipe = self.job.recipe
        return (
            self.job.stack.autocast_until_loss
            and recipe.task in ("dpo", "kto", "orpo", "simpo")
            and recipe.numerics.quantization in ("nf4", "fp4")
            and recipe.numerics.compute_dtype == "bf16"
        )

    def _end_autocast(self, made: list[Instance]) -> None:
        """The copies of trained weights go."""
        for each in made:
            self.stream.events += each.events("forward_end")

    def evaluate(self, parts: list[Part]) -> None:
        """The forward pass of one batch that is evaluated, of parts that were made without gradients."""
        self.stream.enter("eval")
        first = [self._ask(aside, EVALUATED) for aside in self.before]
        made = self.run_aside(_in_units(parts, EVALUATED), waits=self._waits)
        for each in first:
            self.let_go(each)
        asides = self._ask_after(made, EVALUATED)
        self.stream.events += made[-1].events("forward_loss")
        if self._waits:
            self._end_autocast(made)
        for each in (made, *asides):
            self.let_go(each)

    def generate(self, generation: Generation | None, phase: Phase) -> None:
        """Completions of the prompts, and what is asked about them before they are trained on."""
        if generation is None:
            return
        self.stream.enter(phase)
        # The loop that generates has returned from what it trained on before.
        self.stream.events += self._returned
        self._returned = array("q")
        if generation.prompts:
            self.complete(_in_units(generation.prompts, PROMPTED), _in_units(generation.token, SAMPLED))
        else:
            self._complete_by_vllm()
        several = self.learns_order and self.job.recipe.generation_micro_steps > 1
        for aside in generation.asides * (1 + several):
            self.let_go(self.run_aside(aside))
        for compared in [generation.reference] * (1 + several) if generation.reference else ():
            self.let_go(self.run_beside(compared))
        if generation.scores:
            self.let_go(self.run_scoring(_in_units(generation.scores, SCORED)))

    def complete(self, prompts: Sequence[Part], token: Sequence[Part]) -> None:
        """Completions: the ``prompts`` in one pass, then one more ``token``, then the last one."""
        made = self.run_aside(prompts)
        for _ in range(2):
            made = self.run_aside(token, made)
        self.let_go(made)

    def _complete_by_vllm(self) -> None:
        """vLLM gets the weights, and writes the completions; awake for that alone where it sleeps."""
        awake = [wake(self.stream, self.job, "weights")]
        self.hand_weights()
        awake.append(wake(self.stream, self.job, "cache"))
        put_to_sleep(self.stream, *awake)

    def hand_weights(self) -> None:
        """What an engine does to give the program that generates the weights of the policy."""

    def run_aside(
        self, parts: Sequence[Part], cached: list[Instance] | None = None, *, waits: bool = False
    ) -> list[Instance]:
        """A forward pass of parts that were made without gradients; ``cached``: the pass before,
        whose cache it goes on with.  ``waits``: autocast does not end with it.
        """
        made = instances(self.stream, ((part.name, part.template, part.count) for part in parts))
        if cached is not None:
            hand_over(cached, made)
        for each in made[:-1]:
            self.forward(each)
            self.stream.events += each.events("forward_next")
        self.forward(made[-1])
        self.stream.events += made[-1].events("forward_next")
        if not waits:
            self._end_autocast(made)
        self.stream.events += made[-1].events("forward_out")
        return made

    def _ask_after(
        self, made: list[Instance], units: Mapping[Unit, Unit] | None = None
    ) -> list[list[Instance]]:
        """The passes behind the forward of ``made``."""
        asides = []
        for given in self.after:
            asides.append(self._ask(given, units))
            if given is self.itself:
                self.stream.events += made[-1].events("forward_itself")
        return asides

    def _ask(self, aside: Sequence[Part], units: Mapping[Unit, Unit] | None = None) -> list[Instance]:
        """One of the passes beside that of the policy, which may be one of its own."""
        parts = aside if units is None else _in_units(aside, units)
        return (self.run_itself if aside is self.itself else self.run_beside)(parts)

    def run_itself(self, parts: Sequence[Part]) -> list[Instance]:
        """A pass of the policy for the divergence of KTO."""
        return self.run_aside(parts)

    def run_beside(self, parts: Sequence[Part]) -> list[Instance]:
        """The same of what a policy is compared with."""
        return self.run_aside(parts)

    def run_scoring(self, parts: Sequence[Part]) -> list[Instance]:
        """The same of a reward model."""
        return self.run_aside(parts)

    def let_go(self, made: list[Instance]) -> None:
        """What such a pass returned goes."""
        for each in made:
            self.stream.events += each.events("backward_end")

    def free(self, *slots: int | None) -> None:
        """Free what there is of ``slots``."""
        self.stream.free(*slots)

    def forward(self, part: Instance) -> None:
        """The forward pass of one part."""
        self.stream.events += part.events("forward")

    def backward(self, part: Instance) -> None:
        """The backward pass of one part."""
        self.stream.events += part.events("backward")

    def end_of_forward(self) -> None:
        """What an engine does when the model returns."""

    def end_of_backward(self, phases: Pass) -> None:
        """What an engine does when all gradients are there, before the graph goes."""

    def end_of_round(self) -> None:
        """What an engine does when all micro-batches of a pipeline have gone back."""

    def optimizer_step(self, gradients: list[int]) -> None:
        """Update the parameters and drop their gradients."""
        self.stream.enter("optimizer_step")
        weights = [each for each in self.weights if each.trained]
        if not self.states and drawn(self.job.recipe.train_layers) is not None:
            # States of layers that were trained before stay (axolotl 0.19.0 utils/callbacks/lisa.py).
            for each in self.weights:
                if not (each.trained or each.outside):
                    make_states(self.stream, self.job, each)
        self.states += optimizer_step(self.stream, self.job, weights, first=not self.states)
        self.free(*gradients)


def gradients_of(made: Iterable[Instance]) -> Iterable[int]:
    """Where the gradients lie that the backward passes of these parts made."""
    for each in made:
        for _, _, _, slot, _ in each.template.gradients:
            lies_at = each.slot(slot)
            if lies_at is not None:
                yield lies_at
