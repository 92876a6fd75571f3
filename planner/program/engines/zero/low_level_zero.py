"""Stages 1 and 2 of Colossal-AI: what its ``LowLevelZeroOptimizer`` allocates on one rank, moment by moment.

Source: colossalai 0.4.0 and 0.5.0 zero/low_level/low_level_optim.py and bookkeeping/bucket_store.py; each
method names its counterpart.  Nothing is flattened and no buffer is made beforehand: each parameter is
divided by itself, and gradients go to the host only as fp32 copies, when the step begins.  The module comes
to the card whole (``LowLevelZeroModel``).
Ignored: host memory; padding; buffers in which updated weights are gathered, which are of a bucket's size.
"""

from __future__ import annotations

from planner.arrays import ceil_div
from planner.program.engines.params import Param
from planner.program.engines.zero.deepspeed import FP64, MAIN_STREAM, REDUCE_STREAM, DeepSpeed, Purpose
from planner.program.engines.zero.deepspeed_settings import FP32
from planner.program.job import Job
from planner.program.request_stream import RequestStream
from planner.program.runtime import Pass

_CLONE = Purpose("splited_params.clone()", "master_weights")
_MASTER = Purpose("master_param", "master_weights")
_FLAT = Purpose("flatten(gradients)", "gradient_buckets")
_NORM = Purpose("norm in fp64", "optimizer_temporaries")
_WIDE = Purpose("gradient in fp32", "optimizer_temporaries")
_UPLOAD = Purpose("updated weights in fp32", "optimizer_temporaries")
_GATHERED = Purpose("param_to_gather", "optimizer_temporaries")


class LowLevelZero(DeepSpeed):
    """One rank under stage 1 or 2 of Colossal's low-level optimizer."""

    buffers = "buffers of Colossal-AI"

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self._bucket: list[tuple[Param, int]] = []
        self._kept: list[int] = []
        self._accumulates = False
        summed_on = REDUCE_STREAM if self.settings.overlaps else MAIN_STREAM
        self._received = Purpose("received_grad", "gradients", summed_on)

    def set_up(self) -> None:
        """``_create_master_param_current_rank``: an fp32 copy of the own part of each parameter."""
        for param in self.trained:
            clone = self.take(self._part(param) * param.element_bytes, _CLONE, param)
            master = self.take(self._part(param) * FP32, _MASTER, param)
            self.free(clone)
            if self.settings.offloads_optimizer:
                self.free(master)

    def gradient(self, param: Param, slot: int) -> None:
        """``_add_to_bucket``: gradients wait where they are until the next one would overfill the bucket."""
        filled = sum(each.elements for each, _ in self._bucket)
        if filled + param.elements > self.settings.bucket:
            self._reduce()
        self._bucket.append((param, slot))

    def end_of_backward(self, phases: Pass) -> None:
        """``_reduce_grad``: what is left in the bucket; later micro-steps add to what is kept."""
        del phases
        self._reduce()
        self._accumulates = True

    def step(self) -> None:
        """``step``: own gradients in fp32, all at once on the card or one by one on their way to the host."""
        offloads = self.settings.offloads_optimizer
        wide = []
        for param in self.trained:
            wide.append(self.take(self._part(param) * FP32, _WIDE, param))
            if offloads:
                self.free(wide.pop())
        for param in self.trained:
            self.brief(self._part(param) * FP64, _NORM)
        if not offloads:
            self.update(sum(self._part(param) for param in self.trained))
        self.free(*wide)
        for param in self.trained:
            upload = self.take(self._part(param) * FP32, _UPLOAD, param) if offloads else None
            self.brief(self._part(param) * param.element_bytes, _GATHERED)
            self.free(upload)
        self.free(*self._kept)
        self._kept, self._accumulates = [], False

    def _part(self, param: Param) -> int:
        """Elements of ``param`` that each rank keeps."""
        return int(ceil_div(param.elements, self.settings.world))

    def _reduce(self) -> None:
        """``_run_reduction``: stage 2 keeps the own part of the sum, stage 1 the whole of it, in 16 bits."""
        bucket, self._bucket = self._bucket, []
        if not bucket:
            return
        n_bytes = sum(param.n_bytes for param, _ in bucket)
        flat = self.take(n_bytes, _FLAT)
        kept = flat
        if not self.job.recipe.sharding.is_zero1:
            kept = self.take(
                sum(self._part(param) * param.element_bytes for param, _ in bucket), self._received
            )
            self.free(flat)
        if self._accumulates:
            self.free(kept)
        else:
            self._kept.append(kept)
        self.free(*(slot for _, slot in bucket))
