"""FSDP2 beside experts that are divided over GPUs: those of a layer are a unit of their own inside of the
layer's, over fewer GPUs; torchtitan's modules name what is gathered ahead of them.

Source: transformers 5.23 distributed/fsdp.py apply_fully_sharded_data_parallelism
(``set_gradient_divide_factor``); torchtitan e347b1e5e models/llama4/infra/parallelize.py apply_fsdp;
torch 2.13 distributed/fsdp/_fully_shard/_fsdp_state.py (``_states_to_forward_prefetch``),
_fsdp_param_group.py wait_for_unshard (``world_size == 1``), _fsdp_collectives.py
foreach_all_gather_copy_out and foreach_reduce (``fsdp_placement.dim != 0``).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from planner.program.engines.fsdp.fsdp import REDUCE_STREAM
from planner.program.engines.fsdp.fsdp2 import Fsdp2
from planner.program.engines.fsdp.fsdp_units import INNER
from planner.program.engines.groups import TABLE, TAIL, Gradient, Group
from planner.program.job import Job
from planner.program.ops.tensors import ELEMENT_BYTES
from planner.program.parameters import Weight
from planner.program.request_stream import RequestStream


class ExpertFsdp2(Fsdp2):
    """One process of those that Transformers divides, which sends for groups as torch does by itself.

    Ignored: that a second micro-step's gradient of experts stays until it is reduced.
    """

    def local_shards(self) -> list[Weight]:
        """Experts behind all others, as parameters of one mesh are a group of the optimizer.

        Source: transformers 5.23 trainer.py create_optimizer (``by_mesh``).
        """
        updated = [each for each in self.weights if self.is_updated(each)]
        return [self.sizes.shard(each) for each in sorted(updated, key=self.sizes.is_of_experts)]

    def receive_part(self, group: Group, n_bytes: float) -> int:
        """Where one process has all, what is to be reduced is divided and copied."""
        received = super().receive_part(group, n_bytes)
        if group.n == 1:
            self.free(self.take(n_bytes, "gradient_buckets", "div", REDUCE_STREAM))
        return received

    def last_gradient(self, group: Group) -> int | None:
        """That of the last tensor of the experts."""
        if self.sizes.is_of_experts(group.weights[-1]):
            return group.gradients[-1].slot
        return super().last_gradient(group)


class SendingExpertFsdp2(ExpertFsdp2):
    """One process of torchtitan.  ``_ahead``: groups that a group sends for as its forward begins; ``_back``:
    as its backward begins.
    """

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self._ahead: dict[str, list[str]] = {}
        self._back: dict[str, list[str]] = {}

    def local_shards(self) -> list[Weight]:
        """In the order of the model."""
        return Fsdp2.local_shards(self)

    def load(self) -> None:
        """The shards, and which groups send for which."""
        super().load()
        layers = [name for name in self.groups if name.startswith("layer ") and not name.endswith(INNER)]
        self._ahead = {TABLE: layers[:1], layers[-1]: [TAIL]}
        self._back = {TAIL: layers[-1:], layers[0]: [TABLE]}
        for one, other in pairwise(layers):
            self._ahead[one] = self._with_experts(other)
            self._back[other] = self._with_experts(one)

    def _with_experts(self, name: str) -> list[str]:
        return [each for each in (name, name + INNER) if each in self.groups]

    def unshard(self, group: Group) -> None:
        """``unshard``: of what one process has there is nothing to receive."""
        if group.n > 1:
            super().unshard(group)

    def wait(self, group: Group, *, forward: bool) -> None:
        """``wait_for_unshard``: parts along another dimension than the first are copied twice."""
        if group.n > 1:
            waited = group.received is not None
            super().wait(group, forward=forward)
            if waited and self._along_rows(group):
                self.free(*(self._gathered(n_bytes, "parts in order") for n_bytes in group.seen_bytes))
        elif not group.whole:
            self.copy_own(group, forward=forward)

    def reduce(self, group: Group) -> None:
        """``foreach_reduce``: gradients that are cut along another dimension than the first are copied."""
        held = self._cut(group) if self.reduces and self._along_rows(group) else None
        super().reduce(group)
        self.free(held)

    def _cut(self, group: Group) -> int | None:
        """Copies in the order of processes, each made while its gradient is there;
        gives the last gradient, to which variables refer until all is reduced.
        """
        before: int | None = None
        cut: list[Gradient] = []
        for each in group.gradients:
            self.free(before)
            n_bytes = each.elements * ELEMENT_BYTES[each.dtype]
            cut.append(replace(each, slot=self.take(n_bytes, "gradient_buckets", "parts in order")))
            before = each.slot
        group.gradients = cut
        return before

    def _along_rows(self, group: Group) -> bool:
        return self.sizes.along_rows(group.weights[0])

    def _gathered(self, n_bytes: float, op: str) -> int:
        return self.take(n_bytes, "gathered_parameters", op)

    def _before_forward(self, name: str) -> None:
        super()._before_forward(name)
        for each in self._ahead.get(name, ()):
            if each in self.groups:
                self.unshard(self.groups[each])

    def _before_backward(self, name: str) -> None:
        if name not in self._back:
            super()._before_backward(name)
            return
        self.unshard(self.groups[name])
        self.wait(self.groups[name], forward=False)
        for each in self._back[name]:
            if each in self.groups:
                self.unshard(self.groups[each])
