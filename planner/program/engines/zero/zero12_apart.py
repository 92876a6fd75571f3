"""ZeRO stages 1 and 2 whose gradients stay where backward made them (``contiguous_gradients: false``).

Source: DeepSpeed 0.19.8 runtime/zero/stage_1_and_2.py; each method names its counterpart.
Ignored: that a block which the reduction reads comes back at the next request; and that the first update
comes after all of its micro-steps, whose own gradients lie between what the update needs (reserved, not
allocated: up to 8 % at Llama 3.2 1B on two GPUs, nothing without accumulation).
"""

from __future__ import annotations

from planner.program.engines.params import Param
from planner.program.engines.zero.partition import FlatGroup
from planner.program.engines.zero.zero12 import Zero12
from planner.program.job import Job
from planner.program.request_stream import RequestStream


class Zero12Apart(Zero12):
    """One rank without buckets; each bucket is a list of gradients that are reduced together."""

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self._waiting: dict[Param, int] = {}
        self._reduced: list[int] = []
        self._own_whole: dict[Param, int] = {}
        self._summed: dict[Param, int] = {}

    def _set_up_buckets(self) -> None:
        """``setup_buckets``: none."""

    def _put_in_bucket(self, param: Param, slot: int) -> None:
        """``reduce_independent_p_g_buckets_and_remove_grads``."""
        if self._filled + param.elements > self.settings.bucket:
            self._reduce()
        self._waiting[param] = slot
        self._filled += param.elements

    def _reduce(self) -> None:
        """``buffered_reduce_fallback``: all are copied together, summed and copied back.

        Gradients of other ranks go at once, or with the next reduction where that one overlaps
        (``previous_reduced_grads``).  Stage 1 keeps them until the end.
        """
        waiting, self._waiting, self._filled = self._waiting, {}, 0
        if not waiting:
            return
        self.free(*self._reduced)
        self._reduced = []
        self._send(sum(each.elements for each in waiting), n_pieces=len(waiting))
        for param, slot in waiting.items():
            if param in self._own:
                self._own_whole[param] = slot
            elif self._is_first_stage or self.settings.overlaps:
                self._reduced.append(slot)
            else:
                self.free(slot)

    def _close(self) -> None:
        """``independent_gradient_partition_epilogue``: own gradients stay whole, one tensor each
        (``get_all_grad_tensors``); those of a later micro-step are added to them.
        """
        self.free(*self._reduced)
        self._reduced = []
        for param, slot in self._own_whole.items():
            if param in self._summed:
                self.free(slot)
            else:
                self._summed[param] = slot
        self._own_whole = {}

    def _let_go(self, group: FlatGroup) -> None:
        """``averaged_gradients`` of this group."""
        self.free(*[self._summed.pop(each) for each in group.params if each in self._summed])
