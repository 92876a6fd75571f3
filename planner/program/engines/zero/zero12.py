"""ZeRO stages 1 and 2: what DeepSpeed's ``DeepSpeedZeroOptimizer`` allocates on one rank, moment by moment.

Source: DeepSpeed 0.19.8 runtime/zero/stage_1_and_2.py; each method names its counterpart.  Gradients are
copied into buckets and scattered; ``contiguous_gradients``, ``reduce_scatter`` and
``use_multi_rank_bucket_allreduce`` are defaults.
Ignored: host memory.
"""

from __future__ import annotations

from planner.allocator.compiled import MOST_LAG
from planner.program.engines.params import Param, optimizer_groups
from planner.program.engines.zero.deepspeed import FP64, REDUCE_STREAM, DeepSpeed, Purpose
from planner.program.engines.zero.deepspeed_settings import FP32
from planner.program.engines.zero.partition import FlatGroup, merged, sent_together
from planner.program.job import Job
from planner.program.request_stream import RequestStream
from planner.program.runtime import Pass

_CLONE = Purpose("partition.clone()", "master_weights")
_MASTER = Purpose("single_partition_of_fp32_groups", "master_weights")
_INITIAL = Purpose("initialize_optimizer_states", "optimizer_temporaries")
_STAGING = Purpose("temp_grad_buffer_for_gpu_offload", "gradient_buckets")
_BUCKET = Purpose("ipg_buffer", "gradient_buckets")
_CLONED = Purpose("gradient.clone()", "gradients")
_SENT = Purpose("flatten(bucket)", "gradient_buckets", REDUCE_STREAM)
_SENT_WIDE = Purpose("flatten(bucket) in fp32", "gradient_buckets", REDUCE_STREAM)
_PART = Purpose("grads_in_partition", "gradients", REDUCE_STREAM)
_NORM_ON_WAY = Purpose("norm in fp64", "optimizer_temporaries", REDUCE_STREAM)
_HOST_COPY = Purpose("gradient in fp32 for the host", "gradient_buckets", REDUCE_STREAM)
_NORM = Purpose("norm in fp64", "optimizer_temporaries")
_UPLOAD = Purpose("updated weights in fp32", "optimizer_temporaries")


class Zero12(DeepSpeed):
    """One rank under ZeRO-1 or ZeRO-2."""

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self._is_first_stage = job.recipe.sharding.is_zero1
        self._groups: list[FlatGroup] = []
        self._group_of: dict[Param, FlatGroup] = {}
        self._own: dict[Param, int] = {}
        self._buckets: list[int] = []
        self._bucket: list[Param] = []
        self._filled = 0
        self._oversized: int | None = None
        self._kept: dict[Param, int] = {}
        self._left_over: list[int] = []
        self._partition: int | None = None
        self._accumulated: int | None = None

    def set_up(self) -> None:
        """``__init__``: parameters become views of a flat buffer for each group,
        then masters are made of its own part.
        """
        settings = self.settings
        groups = optimizer_groups(self.job, self.trained)
        self._groups = [FlatGroup(members, settings.world) for members in groups]
        self._own = {each: n for group in self._groups for each, n in group.own(self.job.process).items()}
        for group in self._groups:
            self._group_of |= dict.fromkeys(group.params, group)
            width = group.params[0].element_bytes
            self._flatten(group, width)
            clone = self.take(group.part * width, _CLONE)
            if not settings.offloads_optimizer:
                self.take(group.part * FP32, _MASTER)
            self.free(clone)
        if settings.offloads_optimizer:
            self.take(max(each.n_bytes for each in self.trained), _STAGING)
        else:
            self.free(*[self.take(group.part * FP32, _INITIAL) for group in self._groups])

    def _flatten(self, group: FlatGroup, width: int) -> None:
        """On the card where it has room for all trained weights twice (``flatten_on_accelerator``),
        else on the host.

        The cache is emptied before (:449, :462).  So what weights lay in stays cached where they were
        flattened on the card and no group follows.
        """
        room, trained = self.job.hardware.gpu.visible_memory_bytes, sum(each.n_bytes for each in self.trained)
        on_card = self.job.stack.zero12_flattens_on_gpu and (room is None or 2 * trained <= room)
        decays = {each.decays for each in group.params}
        singles = [each.slot for each in self.weights if each.requires_gradient and each.decays in decays]
        if not on_card:
            self.free(*singles)
        self.stream.empty_cache()
        self.take(group.padded * width, Purpose("bit16_groups_flat", group.params[0].term))
        if on_card:
            self.free(*singles)

    def begin_backward(self) -> None:
        """Up to DeepSpeed 0.18.2 buckets are made before the loss runs backward (``backward_prologue``)."""
        if self.job.stack.zero12_early_buckets:
            self._set_up_buckets()

    def gradient(self, param: Param, slot: int) -> None:
        """``process_gradients``: stage 1 keeps gradients until the last micro-step,
        and until its end without overlap.
        """
        self._set_up_buckets()
        kept = self._kept.pop(param, None)
        if kept is not None:
            self.free(slot)  # autograd adds it in place
            slot = kept
        if self._is_first_stage and not (self.boundary and self.settings.overlaps):
            self._kept[param] = slot
        else:
            self._put_in_bucket(param, slot)

    def end_of_backward(self, phases: Pass) -> None:
        """``reduce_gradients`` and ``independent_gradient_partition_epilogue``, which waits for the card."""
        if self._is_first_stage and not phases.is_last:
            return
        for param in self._group_of:  # in the order of the optimizer's groups
            if param in self._kept:
                self._put_in_bucket(param, self._kept.pop(param))
        self._reduce()
        # Own gradients are kept, or added to those that are.
        if self._accumulated is None:
            self._accumulated = self._partition
        else:
            self.free(self._partition)
        self.free(*self._buckets, *self._left_over)
        self._partition, self._buckets, self._left_over = None, [], []
        self.wait(0)

    def step(self) -> None:
        """``step``: the norm, then group by group flat gradients in fp32 and the optimizer."""
        settings = self.settings
        if settings.offloads_optimizer:
            if self.job.stack.zero12_upload == "fp32_on_gpu":
                for group in self._groups:
                    self.brief(group.part * FP32, _UPLOAD)
            return
        for elements in self._own.values():
            self.brief(elements * FP64, _NORM)
        for group in self._groups:
            several = sum(each in self._own for each in group.params) > 1
            wide = self.wide_gradients(group.part, several=several)
            if group is self._groups[-1]:
                # One buffer holds the gradients of all groups.
                self.free(self._accumulated)
                self._accumulated = None
            self.update(group.part)
            self.free(wide)

    def _set_up_buckets(self) -> None:
        """``setup_buckets``: one, or two where the reduction of one overlaps the filling of the other."""
        if not self._buckets:
            n_bytes = self.settings.bucket * self.settings.element_bytes
            self._buckets = [self.take(n_bytes, _BUCKET) for _ in range(1 + self.settings.overlaps)]

    def _put_in_bucket(self, param: Param, slot: int) -> None:
        """``reduce_independent_p_g_buckets_and_remove_grads``:
        larger gradients than a bucket are reduced where they are.
        """
        limit = self.settings.bucket
        if self._filled + param.elements > limit:
            self._reduce()
        self._bucket.append(param)
        self._filled += param.elements
        if param.elements <= limit:
            self.free(slot)
        elif self.settings.offloads_optimizer:
            self._oversized = self.take(param.n_bytes, _CLONED)
            self.free(slot)
        else:
            self._oversized = slot

    def _reduce(self) -> None:
        """``reduce_ipg_grads``: pieces of several processes are copied together before they are sent
        (``allreduce_bucket``).
        """
        bucket, oversized = self._bucket, self._oversized
        self._bucket, self._filled, self._oversized = [], 0, None
        sizes = merged(piece for each in bucket for piece in self._group_of[each].slices(each))
        for call in sent_together(sizes, self.settings.bucket):
            self._send(sum(call), n_pieces=len(call))
        for param in bucket:
            if param in self._own:
                self._keep_own(param)
        if oversized is not None and self._is_first_stage and bucket[0] not in self._own:
            self._left_over.append(oversized)  # its gradient is only cleared at the end
        elif self.settings.offloads_optimizer:
            self.free(oversized)  # each copy to the host is waited for
        else:
            # ``allreduce_and_copy_with_multiple_ranks``: the stream that reduces it uses it
            # (``record_stream``).
            self.free_late(oversized, MOST_LAG)

    def _send(self, elements: int, n_pieces: int) -> None:
        """Several pieces are copied together, and cast where they are sent in another dtype."""
        sent = self.take(elements * self.settings.element_bytes, _SENT) if n_pieces > 1 else None
        wide = self.take(elements * FP32, _SENT_WIDE) if self.settings.reduces_wide else None
        self.free(sent, wide)

    def _keep_own(self, param: Param) -> None:
        """``copy_grads_in_partition``: into one buffer for all own gradients, or on to the host."""
        own = self._own[param]
        if self.settings.offloads_optimizer:
            if self.boundary:
                self.brief(own * FP64, _NORM_ON_WAY)
                self.brief(own * FP32, _HOST_COPY)
        elif self._partition is None:
            whole = sum(each.elements for each in self._own)
            self._partition = self.take(whole * self.settings.element_bytes, _PART)
