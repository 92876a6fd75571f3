"""ZeRO stage 3: what DeepSpeed's ``DeepSpeedZeroOptimizer_Stage3`` and its parameter offload allocate on one
rank.

Source: DeepSpeed 0.19.8 runtime/zero/stage3.py, partition_parameters.py,
runtime/comm/coalesced_collectives.py; each method names its counterpart.  Gradients are reduced by scattering
(``reduce_scatter``, on by default), in a stream of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from measure.trace.record import Place, Record, Role, TracedBlock
from measure.trace.sharding.coordinator import TracedCoordinator, TracedUse
from measure.trace.sharding.runtime_settings import ZeroSettings
from measure.trace.sharding.shard_records import REDUCE_STREAM, RankRecords, Steps, TracedPurpose
from measure.trace.sharding.sharded_parameters import TracedParameter, in_module_order

_FP32, _FP64 = 4, 8
_WHOLE = TracedPurpose("parameter before it is divided", "workspace")
_MASTER = TracedPurpose("fp32_partitioned_groups_flat", "master_weights")
_CONVERTED = TracedPurpose("partition in fp32", "workspace")
_INITIAL = TracedPurpose("initialize_optimizer_states", "workspace")
_HOOKED = TracedPurpose("_allgather_params_sequential", "gathered_parameters")
_BUCKET = TracedPurpose("ipg_bucket.buffer", "gradient_buckets")
_GRADIENTS = TracedPurpose("grad_partitions_flat_buffer", "gradients")
_SENT = TracedPurpose("reduce_scatter_coalesced", "gradient_buckets", REDUCE_STREAM)
_PART = TracedPurpose("gradient partition on its way to the host", "gradient_buckets", REDUCE_STREAM)
_HOST_COPY = TracedPurpose("gradient partition in fp32", "gradient_buckets", REDUCE_STREAM)
_OVERFLOW = TracedPurpose("isinf, isnan(grad_partitions_flat_buffer)", "optimizer_temporaries", REDUCE_STREAM)
_NORM = TracedPurpose("norm in fp64", "optimizer_temporaries")
_FLAT = TracedPurpose("flatten(averaged_gradients)", "optimizer_temporaries")
_WIDE = TracedPurpose("flat gradients in fp32", "optimizer_temporaries")
# Elements per part when a gradient's norm is taken in fp64.  Source: stage3.py _constant_buffered_norm2.
_NORM_PART = 250_000_000
# The host waits for the oldest where more than ``max_param_reduce_events`` = 2 buckets are being reduced.
# Each has a gradient or more, which that stream uses until then.
# Source: stage3.py __add_grad_to_ipg_bucket (``record_stream``), __reduce_and_partition_ipg_grads.
_GRADIENT_LAG = 3


class TracedZero3:
    """One rank under ZeRO-3."""

    updated_bytes = 4  # Masters in fp32.

    def __init__(self, stream: RankRecords, settings: ZeroSettings) -> None:
        self._stream, self._settings = stream, settings
        self._live: dict[tuple[str, str], TracedUse] = {}
        self._of_module: dict[str, list[TracedUse]] = {}
        self._shards: dict[tuple[str, str], TracedBlock] = {}
        self._on_host: dict[tuple[str, str], TracedBlock] = {}
        self._undivided: list[tuple[TracedParameter, TracedBlock, TracedBlock]] = []
        self._roles: dict[tuple[str, str], Role] = {}
        self._groups: list[list[TracedParameter]] = []
        self._steps: Steps = []
        self._bucket: list[tuple[TracedParameter, TracedBlock | None]] = []
        self._filled, self._untied = False, list[TracedBlock]()
        self._loaded_at: Place | None = None
        self._coordinator = TracedCoordinator(stream, settings, lambda name: self._of_module.get(name, []))
        self._gradient_lag = 0 if settings.waits_for_copies else _GRADIENT_LAG

    def load(self, parameter: TracedParameter, record: Record) -> None:
        """``zero.Init``: made whole on the device, then divided, each by itself;
        offloaded parts go on to the host.

        A k-bit model is loaded whole before the engine divides it.  Source: transformers 5.23
        modeling_utils.py get_init_context.
        """
        persists = parameter.elements <= self._settings.persistence_elements
        live = self._live[parameter.key] = TracedUse(parameter, persists)
        self._of_module.setdefault(parameter.key[0], []).append(live)
        role = self._roles[parameter.key] = record.block.role
        if self._settings.quantized:
            n_bytes = parameter.elements * parameter.stored_bytes
            whole = self._stream.take(n_bytes, TracedPurpose(_WHOLE.name, role, module=record.block.module))
            self._undivided.append((parameter, record.block, whole))
            return
        if role == "adapters":
            self.fill()
        else:
            self._loaded_at = record.place
        made = self._stream.take(parameter.n_bytes, _WHOLE)
        self._keep_part(parameter, record.block)
        self._stream.free(made)

    def fill(self) -> None:
        """What was made without weights gets those of the checkpoint, once: each parameter is whole for it.

        A head that is tied to the token table was divided before it was tied.  From then on only its own
        methods refer to it, until the Trainer collects garbage.
        Source: transformers 5.23 modeling_utils.py from_pretrained, integrations/deepspeed.py
        _load_state_dict_into_zero3_model; DeepSpeed 0.19.8 runtime/zero/partition_parameters.py
        _convert_to_deepspeed_param (methods that refer to their parameter).
        """
        settings, stream = self._settings, self._stream
        if self._filled or settings.quantized or not settings.begins_empty:
            return
        self._filled, place = True, stream.place
        stream.place = self._loaded_at or place
        if settings.untied_elements:
            width = next(iter(self._live.values())).parameter.element_bytes
            whole = stream.take(settings.untied_elements * width, _WHOLE)
            if not settings.offloads_params:
                n_bytes = -(-settings.untied_elements // settings.world) * width
                self._untied.append(stream.take(n_bytes, TracedPurpose("ds_tensor", "weights")))
            stream.free(whole)
        for live in self._live.values():
            self._gather_alone(live.parameter)
        stream.place = place

    def collect(self) -> None:
        """Garbage goes (``accelerator.free_memory``)."""
        self._stream.free(*self._untied)
        self._untied.clear()

    def _keep_part(self, parameter: TracedParameter, block: TracedBlock) -> None:
        persists = self._live[parameter.key].persists
        n_bytes = self._part(parameter) * parameter.element_bytes
        if not self._settings.offloads_params or persists:
            self._shards[parameter.key] = self._stream.take(
                n_bytes, TracedPurpose("ds_tensor", block.role, module=block.module)
            )
        else:
            pinned = self._settings.host.pins
            self._on_host[parameter.key] = self._stream.keep_on_host(
                n_bytes, "ds_tensor", "offloaded_parameters", pinned=pinned
            )

    def shard_groups(self) -> list[list[tuple[int, ...]]]:
        """``_create_fp16_sub_groups``: the parts of each group of the optimizer,
        in pieces of at least so many elements.
        """
        trained = [live.parameter for live in self._live.values() if live.parameter.trained]
        for number in sorted({each.group for each in trained}):
            self._groups += self._sub_groups([each for each in trained if each.group == number])
        return [[(self._elements(group),)] for group in self._groups]

    def _sub_groups(self, members: list[TracedParameter]) -> Iterator[list[TracedParameter]]:
        group: list[TracedParameter] = []
        for each in members:
            group.append(each)
            if self._elements(group) >= self._settings.sub_group_elements:
                yield group
                group = []
        if group:
            yield group

    def set_up(self, steps: Steps) -> None:
        """Trained parts move into one buffer; masters,
        the bucket and the buffer for gradients come and stay.
        """
        self._steps, settings, stream = steps, self._settings, self._stream
        self.fill()
        if settings.begins_empty:
            self.collect()
            stream.empty_cache()
        self._divide()
        trained = [each for group in self._groups for each in group]
        if settings.offloads_params:
            self._flatten_on_host(trained)
        else:
            stream.free(*(self._shards.pop(each.key) for each in trained))
            # ``defragment`` (utils.py) copies the parts to the host, empties the cache, and copies them back.
            stream.empty_cache()
            n_bytes = sum(self._part(each) * each.element_bytes for each in trained)
            stream.take(n_bytes, TracedPurpose("lp_param_buffer", self._roles[trained[0].key]))
        if not settings.offloads_optimizer:
            converted = None
            for group in self._groups:
                # A name that stays bound in DeepSpeed's loop.
                last, narrow = converted, group[0].element_bytes < _FP32
                converted = stream.take(self._elements(group) * _FP32, _CONVERTED) if narrow else None
                stream.free(last)
                stream.take(self._elements(group) * _FP32, _MASTER)
            stream.free(converted)
            stream.brief(max(self._elements(group) for group in self._groups) * _FP32, _INITIAL)
        stream.take(settings.bucket_elements * settings.element_bytes, _BUCKET)
        if settings.offloads_optimizer:
            self._set_up_host(sum(self._part(each) for each in trained))
        else:
            stream.take(sum(self._part(each) for each in trained) * settings.element_bytes, _GRADIENTS)
        for each in trained:
            self._gather_alone(each)

    def _gather_alone(self, parameter: TracedParameter) -> None:
        """A parameter is whole for a while: for its values, and for its hook
        (``create_reduce_and_remove_grad_hooks``).
        """
        n_bytes = self._part(parameter) * parameter.element_bytes
        whole = self._stream.take(n_bytes * self._settings.world, _HOOKED)
        if self._settings.hooks_into_copies:
            self._stream.brief(parameter.n_bytes, _HOOKED)
        elif self._settings.offloads_params and not self._live[parameter.key].persists:
            self._stream.brief(n_bytes, _HOOKED)
        self._stream.free(whole)

    def _divide(self) -> None:
        """A model that the engine finds whole: all parameters are cast
        (``_cast_module_mixed_precision``), then divided (``_convert_to_zero_parameters``).
        """
        found = in_module_order(self._undivided, lambda each: each[1])
        cast = [(parameter, block, self._cast(parameter, whole)) for parameter, block, whole in found]
        for parameter, block, whole in cast:
            self._keep_part(parameter, block)
            self._stream.free(whole)
        self._undivided = []

    def _cast(self, parameter: TracedParameter, whole: TracedBlock) -> TracedBlock:
        if parameter.stored_bytes == parameter.element_bytes:
            return whole
        narrow = self._stream.take(parameter.n_bytes, _WHOLE)
        self._stream.free(whole)
        return narrow

    def _flatten_on_host(self, trained: list[TracedParameter]) -> None:
        """``_create_param_groups_fp16_flat_cpu_memory``:
        trained parts move into one pinned buffer for each group.
        """
        stream = self._stream
        for number in sorted({each.group for each in trained}):
            members = [each for each in trained if each.group == number]
            n_bytes = sum(self._part(each) * each.element_bytes for each in members)
            stream.keep_on_host(
                n_bytes, "param_groups_fp16_flat_cpu_memory", "offloaded_parameters", pinned=True
            )
        stream.free(*(self._on_host.pop(each.key, None) for each in trained))

    def _set_up_host(self, elements: int) -> None:
        """Masters, each made from a converted copy, fp32 gradients,
        and one flat buffer in the gradients' own dtype.

        Source: stage3.py ``_create_fp32_partitions``, ``initialize_optimizer_states``,
        ``_setup_for_real_optimizer``.
        """
        stream, pinned = self._stream, self._settings.host.pins
        for group in self._groups:
            n_bytes = self._elements(group) * _FP32
            converted = stream.keep_on_host(n_bytes, _CONVERTED.name, "offloaded_optimizer", pinned=False)
            stream.keep_on_host(n_bytes, _MASTER.name, "offloaded_optimizer", pinned=False)
            stream.free(converted)
        for group in self._groups:
            stream.keep_on_host(
                self._elements(group) * _FP32,
                "subgroup_gradient_buffer",
                "offloaded_gradients",
                pinned=pinned,
            )
        n_bytes = elements * self._settings.element_bytes
        stream.keep_on_host(n_bytes, _GRADIENTS.name, "offloaded_gradients", pinned=pinned)

    def at(self, moment: str, module: str, aliases: str) -> None:
        """A hook of ``module``."""
        if moment == "host_waits":
            self._stream.wait()
            return
        if aliases and module not in self._of_module:
            keys = [(owner, name) for owner, _, name in (each.partition(":") for each in aliases.split())]
            self._of_module[module] = [self._live[key] for key in keys]
        stage = self._stream.place.stage
        if moment == "before_forward" and not module and stage in ("forward", "reference"):
            self._coordinator.new_pass(self._live.values(), trains=stage == "forward")
        if moment in ("before_forward", "before_backward"):
            self._coordinator.fetch(module, forward=moment == "before_forward")
        else:
            self._coordinator.release(module, forward=moment == "after_forward")
        if moment == "after_forward" and not module and stage == "reference":
            self._coordinator.new_pass(self._live.values())

    def gradient(self, parameter: TracedParameter, block: TracedBlock, *, boundary: bool) -> None:
        """``reduce_independent_p_g_buckets_and_remove_grads``:
        larger gradients than the bucket stay where they are.
        """
        limit = self._settings.bucket_elements
        filled = sum(each.elements for each, _ in self._bucket)
        if self._bucket and filled + parameter.elements > limit:
            self._reduce(boundary=boundary)
            filled = 0
        if filled + parameter.elements <= limit:
            self._stream.free_late(block, self._gradient_lag)
            self._bucket.append((parameter, None))
        else:
            self._bucket.append((parameter, block))

    def end_of_backward(self, *, boundary: bool) -> None:
        """``independent_gradient_partition_epilogue``, where the host waits for all gradients;
        then ``backward_epilogue``: what no hook has released.

        That comes back before anything else is gathered, because the host also waits for each batch.
        """
        self._reduce(boundary=boundary)
        self._coordinator.end_of_backward()
        self._stream.wait()
        if not boundary:
            self._coordinator.end_of_graph()

    def step(self, number: int) -> None:
        """``step``: everything is released, and the host reads the norm of all gradients (utils.py
        ``is_invalid_grad_norm``); then sub-group by sub-group.  Small parameters are whole again at the end.
        """
        settings, stream = self._settings, self._stream
        self._coordinator.release_all(self._live.values())
        if not settings.offloads_optimizer:
            if settings.checks_overflow:
                self._check_overflow()
            for each in (each for group in self._groups for each in group):
                stream.brief(self._part(each) * _FP64, _NORM)
        stream.wait()
        if not settings.offloads_optimizer:
            for index, group in enumerate(self._groups):
                elements = self._elements(group)
                flat = stream.take(elements * settings.element_bytes, _FLAT) if len(group) > 1 else None
                wide = stream.take(elements * _FP32, _WIDE) if settings.element_bytes < _FP32 else flat
                if wide is not flat:
                    stream.free(flat)
                stream.splice(self._steps[number][index])
                stream.free(wide)
        else:
            for records in self._steps[number]:
                stream.splice(records)
        self._coordinator.gather_now(live for live in self._live.values() if live.persists)
        self._coordinator.end_of_graph()

    def _check_overflow(self) -> None:
        """``has_overflow``: ``isinf`` compares absolute values of all gradients,
        and ``isnan`` the gradients themselves.
        """
        elements = sum(self._elements(group) for group in self._groups)
        absolute = self._stream.take(elements * self._settings.element_bytes, _OVERFLOW)
        self._stream.brief(elements, _OVERFLOW)
        self._stream.free(absolute)
        self._stream.brief(elements, _OVERFLOW)

    def _reduce(self, *, boundary: bool) -> None:
        """``__avg_scatter_grads`` and ``partition_grads``: several gradients, or one that needs padding,
        are copied together.
        """
        bucket, self._bucket = self._bucket, []
        if not bucket:
            return
        world, width = self._settings.world, self._settings.element_bytes
        padded = sum(self._part(each) for each, _ in bucket) * world
        together = len(bucket) > 1 or padded != bucket[0][0].elements
        sent = self._stream.take(padded * width, _SENT) if together else None
        for parameter, block in bucket:
            part = self._part(parameter)
            if self._settings.offloads_optimizer:
                uploaded = self._stream.take(part * width, _PART)
                if boundary:
                    self._stream.brief(min(part, _NORM_PART) * _FP64, _NORM.on(REDUCE_STREAM))
                    if not self._settings.casts_on_host:
                        self._stream.brief(part * _FP32, _HOST_COPY)
                self._stream.free(uploaded)
            if block is not None:
                self._stream.free_late(block, self._gradient_lag)
        self._stream.free(sent)

    def _part(self, parameter: TracedParameter) -> int:
        return -(-parameter.elements // self._settings.world)

    def _elements(self, group: list[TracedParameter]) -> int:
        return sum(self._part(each) for each in group)
