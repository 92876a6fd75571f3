"""FSDP: weights lie divided over the GPUs, are gathered group by group for the passes,
and gradients are reduced likewise.

This file has what both of its versions share: the moments of a step at which their hooks run.
Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_state.py, _runtime_utils.py.
Ignored: what lies on the host.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Iterable
from itertools import compress

from planner.domain.stack_values import DIVIDED_ROOTS, RETURNED
from planner.domain.term import TermName
from planner.program.engines.fsdp.fsdp_units import INNER, Units, gradients_inside, pieces
from planner.program.engines.groups import (
    EMBEDDINGS,
    HEAD,
    ROOT,
    TABLE,
    TAIL,
    Gradient,
    Group,
    Sizes,
    around,
    load_shards,
)
from planner.program.job import Job
from planner.program.ops.tensors import Moment, PartStage, Unit
from planner.program.parameters import Weight
from planner.program.request_stream import Instance, RequestStream
from planner.program.runtime import Part, Pass, Runtime
from planner.program.update.optimizer import optimizer_step

GATHER_STREAM, REDUCE_STREAM, CAST_STREAM = 1, 2, 3
"""CUDA streams of FSDP's own; memory that was taken for one of them serves no other."""


class Fsdp(Runtime):
    """One of the processes of an FSDP job.  ``order``: groups as their forward ended."""

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self.sizes, self.units = Sizes(job), Units(job)
        self.mixed, self.offloads = job.recipe.numerics.mixed, job.recipe.offloads_params
        self.reduces_last_only = job.recipe.sharding.reduces_last_only(job.stack.fsdp_no_sync)
        self.groups: dict[str, Group] = {}
        self.order: list[str] = []
        self.reduces = True
        self._shards: list[Weight] = []
        # Units inside of layers whose backward runs, and those in which it is over.
        self._inner_now: set[str] = set()
        self._inner_over: set[str] = set()
        # Slots of gradients that their unit has taken before the backward of their part was over.
        self.collected: set[int | None] = set()
        model = job.model
        # PEFT's wrapper hides the last norm, so the head is gathered by itself.
        self._head_alone = job.recipe.adapter is not None and not model.tied
        returned = job.stack.fsdp2_units in RETURNED
        self._returns_logits = returned and job.recipe.sharding.dtensors
        # Accelerate's wrapper, which widens logits, is inside of a model that came divided.
        self._widened_inside = job.stack.fsdp2_casts == "never"
        self._keeps_root = returned and not job.recipe.sharding.dtensors
        self._in_root = frozenset(linear.name for linear in model.extra_linears)

    @abstractmethod
    def make_groups(self, weights: list[Weight]) -> dict[str, Group]:
        """Which parameters are gathered together."""

    @abstractmethod
    def unshard(self, group: Group) -> None:
        """Send for the parts of the others."""

    @abstractmethod
    def wait(self, group: Group, *, forward: bool) -> None:
        """What was sent for is there."""

    @abstractmethod
    def reduce(self, group: Group) -> None:
        """The backward of a group is over, and its parameters are gone."""

    def is_updated(self, weight: Weight) -> bool:
        """Whether the optimizer has states of a parameter."""
        return weight.trained

    def load(self) -> None:
        """Every parameter comes whole, and leaves its shard."""
        self.weights = self.load_weights()
        divided = [each for each in self.weights if self.sizes.divides(each)]
        self.groups = {name: group for name, group in self.make_groups(divided).items() if group.weights}
        for group in self.groups.values():
            self.measure(group)
        self._shards = self.local_shards()

    def measure(self, group: Group) -> None:
        """Enter the sizes of a group's parameters."""
        sizes = self.sizes
        group.n = sizes.parts(group.weights[0])
        group.seen_bytes = [sizes.seen_bytes(each) for each in group.weights]
        group.whole_bytes = sum(group.seen_bytes)
        group.shard_bytes = sum(sizes.stored_bytes(each) for each in group.weights)
        casts = [sizes.stored(each) != sizes.seen(each) for each in group.weights]
        group.cast_bytes = sum(compress(group.seen_bytes, casts))

    def local_shards(self) -> list[Weight]:
        """What the optimizer updates here."""
        return [self.sizes.shard(each) for each in self.weights if self.is_updated(each)]

    def load_weights(self) -> list[Weight]:
        """One parameter after the other."""
        return load_shards(self.stream, self.job, self.sizes)

    def micro_step(self, parts: list[Part], phases: Pass) -> list[int]:
        """One micro-step; the optimizer updates shards, whose gradients the groups have."""
        self.reduces = phases.is_last or not self.reduces_last_only
        super().micro_step(parts, phases)
        if self.stream.lags:
            # The Trainer looks at each loss (``isnan``); other loops copy the next batch, for which the host
            # waits (torch 2.13 ATen/native/cuda/Copy.cu): behind either all of a backward pass is over.
            self.stream.wait()
        return []

    def forward(self, part: Instance) -> None:
        """The forward pass of one part, with the hooks of its groups."""
        stream, events = self.stream, part.events("forward")
        if part.name == EMBEDDINGS:
            before, inside, after = around(stream, events, self.job.model.token_embedding.name)
            stream.events += before
            self._before_forward(ROOT)
            self._before_forward(TAIL if self.job.model.tied else TABLE)
            stream.events += inside
            self._after_forward(TABLE)
            stream.events += after
        elif part.name == HEAD:
            before, inside, after = around(stream, events, self.job.model.head.name)
            if not self._head_alone:
                self._before_forward(TAIL)
            stream.events += before
            self._before_forward(TAIL)
            stream.events += inside if self._returns_logits else inside + after
            self._after_forward(TAIL)
            self._after_forward(ROOT)
            if not self._widened_inside:
                self.end_of_forward()
            if self._returns_logits:
                stream.events += after
        else:
            self._before_forward(part.name)
            self._run(part, "forward")
            self._after_forward(part.name)

    def backward(self, part: Instance) -> None:
        """The backward pass of one part, with the hooks of its groups."""
        stream, events = self.stream, part.events("backward")
        if part.name == HEAD:
            self._backward_of_head(part, events)
        elif part.name == EMBEDDINGS:
            if part.template.out.needs_grad:
                self._before_backward(TABLE)
            stream.events += events
            self._collect(part)
        elif part.template.out.needs_grad:
            self._before_backward(part.name)
            self._run(part, "backward")
            self._collect(part)
            self._after_backward(part.name)

    def _run(self, part: Instance, stage: PartStage) -> None:
        """A layer, with the hooks of the unit inside of it where there is one."""
        if not self.units.inside:
            self.stream.events += part.events(stage)
            return
        for events, moment in pieces(part, stage, self.units.path):
            self.stream.events += events
            if moment is not None:
                self._at(part, moment, recomputes=stage == "backward")

    def _at(self, part: Instance, moment: Moment, *, recomputes: bool) -> None:
        """The unit inside of a layer is entered or left.

        Run again by a checkpoint, it is gathered and given back like in forward,
        unless its backward has begun.
        """
        name = part.name + INNER
        if name in self._inner_over:
            return
        if moment == "before_backward":
            self._inner_now.add(name)
            self._before_backward(name)
        elif moment == "after_backward":
            self._inner_over.add(name)
            self._collect_inside(part)
            self._after_backward(name)
        elif name not in self._inner_now:
            if moment == "before_forward":
                self._before_forward(name)
            else:
                self._after_forward(name, again=recomputes)

    def _backward_of_head(self, part: Instance, events: array[int]) -> None:
        """A table that is tied to the head waits for the end: token numbers have no gradient to hook into.

        The hook of the root is on what the model returns: its loss, or the logits of another loss, which
        trainers of preferences have and loops of their own.  These are stacks whose root is not whole any
        more then, but for those that run Transformers' Trainer.  Of FSDP1 it is on these logits, too, though
        the root is whole.
        """
        if self._widened_inside:
            self.end_of_forward()
        stream, own_loss = self.stream, self._keeps_root or self.job.recipe.has_own_loss
        before, inside, after = around(stream, events, self.job.model.head.name)
        root = self.groups.get(ROOT)
        stays = root is None or root.stays
        if (stays and not own_loss) or self.job.stack.fsdp2_units in DIVIDED_ROOTS:
            self._before_backward(ROOT)
            stream.events += before
        else:
            stream.events += before
            self._before_backward(ROOT)
        self._before_backward(TAIL)
        stream.events += inside
        if not self._head_alone:
            stream.events += after
        self._collect(part)
        if not self.job.model.tied:
            self._after_backward(TAIL)
        if self._head_alone:
            stream.events += after

    def end_of_forward(self) -> None:
        """The model returns."""

    def end_of_backward(self, phases: Pass) -> None:
        """Groups whose input needs no gradient, or which wait for the last one."""
        del phases
        for name, group in self.groups.items():
            if group.whole or group.gradients:
                self._after_backward(name)
        self.order.clear()
        self._inner_now.clear()
        self._inner_over.clear()
        self.collected.clear()

    def optimizer_step(self, gradients: list[int]) -> None:
        """Update the shards and drop their gradients."""
        del gradients
        self.stream.enter("optimizer_step")
        if not (self.offloads or self.job.recipe.offloads_optimizer):
            self.states += optimizer_step(self.stream, self.job, self._shards, first=not self.states)
        for group in self.groups.values():
            self.free(group.reduced)
            group.reduced = None

    def _collect(self, part: Instance) -> None:
        """Gradients of whole parameters wait for their group."""
        found: Iterable[Gradient] = self.sizes.gradients_of(part)
        if self.units.inside and part.name.startswith("layer "):
            inner, found = gradients_inside(self.sizes, part, self.units.path)
            if inner and part.name + INNER not in self._inner_over:
                self.groups[part.name + INNER].gradients += inner
        for each in found:
            if each.slot in self.collected:
                continue
            name = self._group_of(part.name, each.module)
            self.groups[name if name in self.groups else ROOT].gradients.append(each)

    def _collect_inside(self, part: Instance) -> None:
        """Gradients of the unit inside of a layer, whose backward is over."""
        inner, _ = gradients_inside(self.sizes, part, self.units.path)
        self.groups[part.name + INNER].gradients += inner

    def _group_of(self, part: str, module: str) -> str:
        """The group of a parameter, from its part of the model and its module."""
        model = self.job.model
        if module in self._in_root:
            return ROOT
        if part == EMBEDDINGS:
            return ROOT if module != model.token_embedding.name else TAIL if model.tied else TABLE
        return TAIL if part == HEAD else part

    def _before_forward(self, name: str) -> None:
        group = self.groups.get(name)
        if group is not None:
            self.unshard(group)
            self.wait(group, forward=True)

    def _after_forward(self, name: str, *, again: bool = False) -> None:
        group = self.groups.get(name)
        if group is not None:
            if not group.stays and self.job.recipe.sharding.divides_weights:
                self._reshard(group)
            if not again:
                self.order.append(name)

    def _before_backward(self, name: str) -> None:
        """Gathered, if the group behind has not done so; then the one before it is sent for."""
        group = self.groups.get(name)
        if group is not None:
            self.unshard(group)
            self.wait(group, forward=False)
            self.send_for_next(name)

    def send_for_next(self, name: str) -> None:
        """The group whose forward ended before that of ``name`` is sent for."""
        index = self.order.index(name)
        if index > 0:
            self.unshard(self.groups[self.order[index - 1]])

    def _after_backward(self, name: str) -> None:
        group = self.groups.get(name)
        if group is not None:
            self._reshard(group)
            self.reduce(group)

    def _reshard(self, group: Group) -> None:
        self.free(*group.whole)
        group.whole = []

    def take(self, n_bytes: float, term: TermName, op: str, stream: int = 0) -> int:
        """Allocate."""
        return self.stream.allocate(Unit.ONE, n_bytes, term, ("fsdp", "", op), stream)
