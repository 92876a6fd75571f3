"""ZeRO stages 1 and 2: what DeepSpeed's ``DeepSpeedZeroOptimizer`` allocates on one rank, moment by moment.

Source: DeepSpeed 0.19.8 runtime/zero/stage_1_and_2.py; each method names its counterpart.  Gradients are
contiguous, reduced in buckets and scattered (``contiguous_gradients``, ``reduce_scatter`` and
``use_multi_rank_bucket_allreduce`` are on by default).
"""

from __future__ import annotations

from dataclasses import replace

from measure.trace.record import Record, TracedBlock
from measure.trace.sharding.partition import TracedFlatGroup, merged, sent_together
from measure.trace.sharding.runtime_settings import ZeroSettings
from measure.trace.sharding.shard_records import MAIN_STREAM, REDUCE_STREAM, RankRecords, Steps, TracedPurpose
from measure.trace.sharding.sharded_parameters import TracedParameter, in_module_order
from planner.allocator.compiled import MOST_LAG

_FP32, _FP64 = 4, 8
_HELD = TracedPurpose("parameter before it is cast", "")
_BUCKET = TracedPurpose("ipg_buffer", "gradient_buckets")
_SENT = TracedPurpose("flatten(bucket)", "gradient_buckets")
_STAGING = TracedPurpose("temp_grad_buffer_for_gpu_offload", "gradient_buckets")
_PARTITION = TracedPurpose("grads_in_partition", "gradients")
_MASTER = TracedPurpose("single_partition_of_fp32_groups", "master_weights")
_INITIAL = TracedPurpose("initialize_optimizer_states", "workspace")
_CLONE = TracedPurpose("partition.clone()", "workspace")
_NORM = TracedPurpose("norm in fp64", "optimizer_temporaries")
_FLAT = TracedPurpose("flatten(averaged_gradients)", "optimizer_temporaries")
_WIDE = TracedPurpose("flat gradients in fp32", "optimizer_temporaries")
_HOST_COPY = TracedPurpose("gradient in fp32 for the host", "gradient_buckets")
_UPLOAD = TracedPurpose("updated weights in fp32", "optimizer_temporaries")
_UPLOAD_BUFFER = "param_buffer_of_bit16_for_cpu_offload_groups"
_CLONED = TracedPurpose("gradient.clone()", "gradients")


class TracedZero12:
    """One rank under ZeRO-1 or ZeRO-2."""

    updated_bytes = 4  # Masters in fp32.

    def __init__(self, stream: RankRecords, settings: ZeroSettings) -> None:
        self._stream, self._settings = stream, settings
        self._weights: dict[tuple[str, str], TracedBlock] = {}
        self._trained: list[TracedParameter] = []
        self._to_cast: list[tuple[Record, TracedBlock]] = []
        self._groups: tuple[TracedFlatGroup, ...] = ()
        self._own: set[tuple[str, str]] = set()
        self._on_host: set[tuple[str, str]] = set()
        self._steps: Steps = []
        self._reducing = REDUCE_STREAM if settings.overlaps else MAIN_STREAM
        self._buckets: list[TracedBlock] = []
        self._bucket: list[TracedParameter] = []
        self._oversized: TracedBlock | None = None
        self._held: dict[tuple[str, str], TracedBlock] = {}
        self._left_over: list[TracedBlock] = []
        self._partition: TracedBlock | None = None
        self._accumulated: TracedBlock | None = None

    def load(self, parameter: TracedParameter, record: Record) -> None:
        """The engine moves the 16-bit module to the device whole (engine.py
        ``_configure_distributed_model``).  A k-bit model is there, and cast when all has come
        (``_cast_module_mixed_precision``).
        """
        if self._settings.quantized and parameter.stored_bytes != parameter.element_bytes:
            held = TracedPurpose(_HELD.name, record.block.role, module=record.block.module)
            self._to_cast.append(
                (record, self._stream.take(parameter.elements * parameter.stored_bytes, held))
            )
        else:
            self._stream.pass_on(record)
        if parameter.trained:
            self._trained.append(parameter)
            self._weights[parameter.key] = record.block

    def shard_groups(self) -> list[list[tuple[int, ...]]]:
        """Shapes that the optimizer updates, by group; none where the host does."""
        numbers = sorted({each.group for each in self._trained})
        members = [[each for each in self._trained if each.group == number] for number in numbers]
        self._groups = tuple(TracedFlatGroup.of(group, self._settings.world) for group in members)
        self._own = {each.key for group in self._groups for each in group.own(self._settings.rank)}
        return [[(group.part_elements,)] for group in self._groups]

    def set_up(self, steps: Steps) -> None:
        """``__init__``: parameters become views of a flat buffer per group.  They live beside it while it is
        filled, or are on the host.

        The cache is emptied before each (:449, :462).
        """
        self._steps, settings = steps, self._settings
        on_card = settings.flattens_on_card(sum(each.n_bytes for each in self._trained))
        for record, held in in_module_order(self._to_cast, lambda each: each[0].block):
            self._stream.pass_on(replace(record, place=self._stream.place))
            self._stream.free(held)
        for group in self._groups:
            first = self._weights[group.parameters[0].key]
            role, width = first.role, group.parameters[0].element_bytes
            whole = [self._weights.pop(each.key) for each in group.parameters]
            if not on_card:
                self._stream.free(*whole)
            self._stream.empty_cache()
            self._stream.take(group.padded_elements * width, TracedPurpose("bit16_groups_flat", role))
            if on_card:
                self._stream.free(*whole)
            clone = self._stream.take(group.part_elements * width, _CLONE)
            if not settings.offloads_optimizer:
                self._stream.take(group.part_elements * _FP32, _MASTER)
            self._stream.free(clone)
        if settings.offloads_optimizer:
            self._set_up_host()
        else:
            self._stream.free(
                *[self._stream.take(group.part_elements * _FP32, _INITIAL) for group in self._groups]
            )

    def _set_up_host(self) -> None:
        """Masters, the buffer of updated weights, gradients,
        and a staging buffer on either side for the largest gradient.
        """
        settings, host = self._settings, self._settings.host
        keep = self._stream.keep_on_host
        for group in self._groups:
            keep(group.part_elements * _FP32, _MASTER.name, "offloaded_optimizer", pinned=host.pins_masters)
            if host.upload == "buffer_on_host":
                keep(
                    group.part_elements * settings.element_bytes,
                    _UPLOAD_BUFFER,
                    "upload_buffer",
                    pinned=host.pins,
                )
        largest = max(each.n_bytes for each in self._trained)
        keep(largest, "temp_grad_buffer_for_cpu_offload", "offloaded_gradients", pinned=host.pins)
        self._stream.take(largest, _STAGING)
        for group in self._groups:
            keep(
                group.part_elements * _FP32, "single_grad_partition", "offloaded_gradients", pinned=host.pins
            )

    def _upload(self, group: TracedFlatGroup) -> None:
        """Updated weights on their way back, where no buffer is kept for them: cast on the host,
        or in fp32 through the GPU.
        """
        if self._settings.host.upload == "fp32_on_gpu":
            self._stream.brief(group.part_elements * _FP32, _UPLOAD)
        elif self._settings.host.upload == "cast_on_host":
            n_bytes = group.part_elements * self._settings.element_bytes
            self._stream.free(
                self._stream.keep_on_host(n_bytes, _UPLOAD_BUFFER, "upload_buffer", pinned=False)
            )

    def at(self, moment: str, module: str, aliases: str) -> None:
        """Stages 1 and 2 hook into gradients only;
        up to DeepSpeed 0.18.2 buckets are made before (``backward_prologue``).
        """
        del module, aliases
        if moment == "start_of_backward":
            self._set_up_buckets()

    def gradient(self, parameter: TracedParameter, block: TracedBlock, *, boundary: bool) -> None:
        """``process_gradients``: stage 1 keeps gradients until the last micro-step,
        and until its end without overlap.
        """
        self._set_up_buckets()
        kept = self._held.pop(parameter.key, None)
        if kept is not None:
            self._stream.free(block)  # added in place by autograd
            block = kept
        if self._settings.stage == 1 and not (boundary and self._settings.overlaps):
            self._held[parameter.key] = block
        else:
            self._put_in_bucket(parameter, block, boundary=boundary)

    def end_of_backward(self, *, boundary: bool) -> None:
        """``reduce_gradients`` and ``independent_gradient_partition_epilogue``, which waits for the card."""
        if self._settings.stage == 1 and not boundary:
            return
        for parameter in self._trained:
            block = self._held.pop(parameter.key, None)
            if block is not None:
                self._put_in_bucket(parameter, block, boundary=boundary)
        self._reduce(boundary=boundary)
        if self._accumulated is None:
            self._accumulated = self._partition
        else:
            self._stream.free(self._partition)
        self._stream.free(*self._buckets, *self._left_over)
        self._partition, self._buckets, self._left_over = None, [], []
        self._stream.wait()

    def step(self, number: int) -> None:
        """``step``: the norm, then group by group flat gradients in fp32, the optimizer,
        and weights back to 16-bit.
        """
        settings = self._settings
        if settings.offloads_optimizer:
            for index, group in enumerate(self._groups):
                self._stream.splice(self._steps[number][index])
                self._upload(group)
            return
        for group in self._groups:
            for parameter in group.own(self._settings.rank):
                self._stream.brief(_FP64 * self._own_elements(group, parameter), _NORM)
        for index, group in enumerate(self._groups):
            several = len(group.own(self._settings.rank)) > 1
            flat = self._stream.take(group.part_elements * settings.element_bytes, _FLAT) if several else None
            wide = (
                self._stream.take(group.part_elements * _FP32, _WIDE)
                if settings.element_bytes < _FP32
                else flat
            )
            if wide is not flat:
                self._stream.free(flat)
            if index == len(self._groups) - 1:
                # One buffer holds the gradients of all groups, so it goes with the last of them.
                self._stream.free(self._accumulated)
                self._accumulated = None
            self._stream.splice(self._steps[number][index])
            self._stream.free(wide)

    def _set_up_buckets(self) -> None:
        """``setup_buckets``: one, or two where the reduction of one overlaps the filling of the other."""
        if not self._buckets:
            n_bytes = self._settings.bucket_elements * self._settings.element_bytes
            self._buckets = [self._stream.take(n_bytes, _BUCKET) for _ in range(1 + self._settings.overlaps)]

    def _put_in_bucket(self, parameter: TracedParameter, block: TracedBlock, *, boundary: bool) -> None:
        """``reduce_independent_p_g_buckets_and_remove_grads``:
        larger gradients than a bucket are reduced where they are.
        """
        limit = self._settings.bucket_elements
        if sum(each.elements for each in self._bucket) + parameter.elements > limit:
            self._reduce(boundary=boundary)
        self._bucket.append(parameter)
        if parameter.elements <= limit:
            self._stream.free(block)
        elif self._settings.offloads_optimizer:
            self._oversized = self._stream.take(parameter.n_bytes, _CLONED)
            self._stream.free(block)
        else:
            self._oversized = block

    def _reduce(self, *, boundary: bool) -> None:
        """``reduce_ipg_grads``: pieces of several processes are copied together before they are sent."""
        bucket, oversized, settings = self._bucket, self._oversized, self._settings
        self._bucket, self._oversized = [], None
        groups = {each.key: group for group in self._groups for each in group.parameters}
        sizes = merged(piece for each in bucket for piece in groups[each.key].slices(each))
        for call in sent_together(sizes, settings.bucket_elements):
            if len(call) > 1:
                self._stream.brief(sum(call) * settings.element_bytes, _SENT.on(self._reducing))
        for parameter in bucket:
            self._keep_own(groups[parameter.key], parameter, boundary=boundary)
        if oversized is not None and settings.stage == 1 and bucket[0].key not in self._own:
            self._left_over.append(oversized)  # its gradient is only cleared at the end
        elif oversized is not None and settings.overlaps and not settings.offloads_optimizer:
            # ``allreduce_and_copy_with_multiple_ranks``: the stream that reduces it still uses it
            # (``record_stream``).  With the optimizer on the host this waits for each copy.
            self._stream.free_late(oversized, MOST_LAG)
        else:
            self._stream.free(oversized)

    def _keep_own(self, group: TracedFlatGroup, parameter: TracedParameter, *, boundary: bool) -> None:
        """``copy_grads_in_partition``: into one buffer for all own gradients, or on to the host."""
        if parameter.key not in self._own:
            return
        if self._settings.offloads_optimizer:
            self._accumulate_on_host(parameter)
            if boundary:
                own = self._own_elements(group, parameter)
                self._stream.brief(own * _FP64, _NORM.on(self._reducing))
                self._stream.brief(own * _FP32, _HOST_COPY.on(self._reducing))
        elif self._partition is None:
            elements = sum(each.elements for every in self._groups for each in every.own(self._settings.rank))
            self._partition = self._stream.take(
                elements * self._settings.element_bytes, _PARTITION.on(self._reducing)
            )

    def _accumulate_on_host(self, parameter: TracedParameter) -> None:
        """``async_accumulate_grad_in_cpu_via_gpu``: a 16-bit copy of each own gradient, whole,
        which stays.
        """
        if self._settings.accumulates and parameter.key not in self._on_host:
            self._on_host.add(parameter.key)
            pinned = self._settings.host.pins
            self._stream.keep_on_host(
                parameter.n_bytes, "accumulated_grads_in_cpu", "offloaded_gradients", pinned=pinned
            )

    def _own_elements(self, group: TracedFlatGroup, parameter: TracedParameter) -> int:
        return sum(elements for owner, elements in group.slices(parameter) if owner == self._settings.rank)
