"""FSDP2 under a pipeline: weights stay whole from the first micro-batch of a round to the last one, their
gradients are summed whole, and both are divided again when all micro-batches have gone back.

Source: torch 2.13 distributed/pipelining/stage.py backward_maybe_with_nosync (neither reduced nor divided
again), perform_reduce_grad; distributed/fsdp/_fully_shard/_fsdp_param.py to_accumulated_grad_if_needed,
accumulate_unsharded_grad_if_needed; torchtitan e347b1e5e models/llama3/infra/parallelize.py apply_fsdp
(``reshard_after_forward`` is off where there is a pipeline).
"""

from __future__ import annotations

from planner.program.engines.fsdp.fsdp2 import Fsdp2
from planner.program.job import Job
from planner.program.request_stream import RequestStream
from planner.program.runtime import Pass


class PipelinedFsdp2(Fsdp2):
    """One process of one group."""

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self.adds_gradients = not self._widens

    def _after_backward(self, name: str) -> None:
        """``post_backward`` without a reduction."""
        group = self.groups.get(name)
        if group is not None and self._widens:
            self.add_up(group)

    def end_of_backward(self, phases: Pass) -> None:
        """Groups whose input needs no gradient."""
        del phases
        for name, group in self.groups.items():
            if group.gradients:
                self._after_backward(name)

    def end_of_round(self) -> None:
        """``perform_reduce_grad``: every group in the order of modules."""
        for group in self.groups.values():
            self.take_sums(group)
            self._reshard(group)
            self.reduce(group)
        super().end_of_backward(Pass("forward_2", "loss_2", "backward_2", is_last=True))
