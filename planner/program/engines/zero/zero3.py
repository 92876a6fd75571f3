"""ZeRO stage 3: what DeepSpeed's ``DeepSpeedZeroOptimizer_Stage3`` and its parameter offload allocate on one
rank.

Source: DeepSpeed 0.19.8 runtime/zero/stage3.py, partition_parameters.py,
runtime/comm/coalesced_collectives.py; each method names its counterpart.  Gradients are reduced by scattering
(``reduce_scatter``, a default), in a stream of their own.
A loss that reads the head's weight without calling the head makes it a parameter of the model that is
running (``register_external_parameter``): from then on it is whole as long as that model runs.
Ignored: host memory; the same of losses other than TRL's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from planner.domain.term import TermName
from planner.program.engines.groups import EMBEDDINGS, HEAD
from planner.program.engines.params import Param, largest_units, optimizer_groups, packed_elements, params_of
from planner.program.engines.zero.coordinator import Coordinator, Live, Module
from planner.program.engines.zero.deepspeed import FP32, FP64, REDUCE_STREAM, DeepSpeed, Purpose
from planner.program.engines.zero.deepspeed_settings import reference_settings
from planner.program.job import Job, reference_job
from planner.program.load import load_whole
from planner.program.ops.tensors import ELEMENT_BYTES, Mark
from planner.program.request_stream import Instance, RequestStream, labelled
from planner.program.runtime import Part, Pass

_WHOLE = Purpose("parameter before it is divided", "weights")
_CONVERTED = Purpose("partition in fp32", "master_weights")
_MASTER = Purpose("fp32_partitioned_groups_flat", "master_weights")
_INITIAL = Purpose("initialize_optimizer_states", "optimizer_temporaries")
_HOOKED = Purpose("_allgather_params_sequential", "gathered_parameters")
_BUCKET = Purpose("ipg_bucket.buffer", "gradient_buckets")
_GRADIENTS = Purpose("grad_partitions_flat_buffer", "gradients")
_SENT = Purpose("reduce_scatter_coalesced", "gradient_buckets", REDUCE_STREAM)
_PART = Purpose("gradient partition on its way to the host", "gradient_buckets", REDUCE_STREAM)
_NORM_ON_WAY = Purpose("norm in fp64", "optimizer_temporaries", REDUCE_STREAM)
_HOST_COPY = Purpose("gradient partition in fp32", "gradient_buckets", REDUCE_STREAM)
_OVERFLOW = Purpose("isinf, isnan(grad_partitions_flat_buffer)", "optimizer_temporaries", REDUCE_STREAM)
_NORM = Purpose("norm in fp64", "optimizer_temporaries")
_FLAT = Purpose("flatten(averaged_gradients)", "optimizer_temporaries")
_WIDE = Purpose("flat gradients in fp32", "optimizer_temporaries")
# The host waits for the oldest where more than ``max_param_reduce_events`` = 2 buckets are being reduced.
# Each has a gradient or more, which that stream uses until then.
# Source: stage3.py __add_grad_to_ipg_bucket (``record_stream``), __reduce_and_partition_ipg_grads.
_GRADIENT_LAG = 3
# Elements per part when a gradient's norm is taken in fp64.  Source: stage3.py _constant_buffered_norm2.
_NORM_PART = 250_000_000


@dataclass(slots=True)
class _Engine:
    """What divides one model: its parameters, the modules that hold them, and who fetches them.

    ``around``: the model and the one inside of it,
    which hold none themselves but prefetch for those behind them.
    """

    coordinator: Coordinator
    live: dict[Param, Live] = field(default_factory=dict)
    modules: dict[str, list[Module]] = field(default_factory=dict)
    around: tuple[Module, Module] = field(default_factory=lambda: (Module(), Module()))


class Zero3(DeepSpeed):
    """One rank; all have equal parts of every parameter."""

    hears = ("before_forward", "after_forward", "before_backward", "after_backward", "gradient")

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self._own = _Engine(Coordinator(self))
        # What holds parameters that others read: the model around the layers.
        self._outer = Module()
        self._read: Module | None = None
        self._reference = _Engine(Coordinator(self, reference_settings(job)))
        # The one whose model runs.
        self._now = self._own
        self._trained_parts: list[int] = []
        self._groups: list[list[Param]] = []
        self._bucket: list[tuple[Param, int | None]] = []
        self._filled = 0
        waits = self.settings.offloads_optimizer and job.stack.zero3_waits_for_copies
        self._gradient_lag = 0 if waits else _GRADIENT_LAG

    def load_weights(self) -> None:
        """``zero.Init``: each parameter is made whole on the card and divided at once;
        offloaded parts go to the host.

        A k-bit model is on the card whole before.
        """
        self._note(self._own, self.parts, self.params)
        if self.job.scenario.reads_head:
            self._read = self._module_of_head()
        if self._loads_whole:
            self.weights = load_whole(self.stream, self.job)
            return
        self.stream.enter("load")
        for param in sorted(self._own.live, key=lambda each: each.term == "adapters"):
            if param.term == "adapters":
                self.stream.enter("adapters")
            self.brief(param.n_bytes, _WHOLE)
            self._own.coordinator.divide_inside(self._own.live[param])
            self._keep_part(param.elements, param.element_bytes, param.term, trained=param.trained)
        if self.job.recipe.has_reference_model:
            self._load_reference()

    def _module_of_head(self) -> Module:
        (head,) = (part.template for part in self.parts if part.name == HEAD)
        names = [".".join(each) for each in head.modules]
        return self._own.modules[HEAD][names.index(self.job.model.head.name)]

    def _load_reference(self) -> None:
        """A second model, which an engine without an optimizer divides (trl 1.16.0 models/utils.py
        prepare_deepspeed).
        """
        parts = (*self.before, *self.after)[0]
        self._note(self._reference, parts, params_of(reference_job(self.job), parts))
        for param in self._reference.live:
            self.brief(param.n_bytes, _WHOLE)
            self._keep_part(param.elements, param.element_bytes, param.term, trained=False)

    def _note(self, engine: _Engine, parts: list[Part], params: dict[str, list[Param]]) -> None:
        """Which module holds which parameter; those at rest belong to none that runs."""
        for own in params.values():
            for param in own:
                if param not in engine.live:
                    engine.live[param] = engine.coordinator.live(param)
        for label, template in labelled((part.name, part.template, part.count) for part in parts):
            modules = engine.modules[label] = [Module() for _ in template.modules]
            for parameter, param in zip(template.parameters, params[label], strict=True):
                modules[parameter.module].own.append(engine.live[param])

    @property
    def _loads_whole(self) -> bool:
        """Whether the model is on the card whole before the engine divides it:
        a k-bit one is made without ``zero.Init``.

        Source: transformers 5.23 modeling_utils.py get_init_context; deepspeed 0.19 runtime/engine.py
        _configure_distributed_model (``module.to(device)``).
        """
        return self.job.regime.quantized or not self.job.stack.zero_init

    def _keep_part(self, elements: int, width: int, term: TermName, *, trained: bool) -> None:
        if self.settings.offloads_params and elements > self.settings.persistence:
            return
        slot = self.take(-(-elements // self.settings.world) * width, Purpose("ds_tensor", term))
        if trained:
            self._trained_parts.append(slot)

    def set_up(self) -> None:
        """Trained parts move into one buffer; masters,
        the bucket and the buffer for gradients come and stay.
        """
        settings = self.settings
        self._divide()
        for members in optimizer_groups(self.job, self.trained):
            self._groups += self._sub_groups(members)
        trained = [each for group in self._groups for each in group]
        # With offloaded parameters the buffer is on the host, and small parameters move there too.
        self.free(*self._trained_parts)
        if not settings.offloads_params:
            # ``defragment`` copies the parts to the host, empties the cache, and copies them back as one.
            self.stream.empty_cache()
            self.take(
                sum(self._part(each) * each.element_bytes for each in trained),
                Purpose("lp_param_buffer", trained[0].term),
            )
        if not settings.offloads_optimizer:
            converted = None
            for group in self._groups:
                # A variable of the loop: the last group's is there until the next one is made.
                before, narrow = converted, group[0].element_bytes < FP32
                converted = self.take(self._elements(group) * FP32, _CONVERTED) if narrow else None
                self.free(before)
                self.take(self._elements(group) * FP32, _MASTER)
            self.free(converted)
            self.brief(max(self._elements(group) for group in self._groups) * FP32, _INITIAL)
        self.take(settings.bucket * settings.element_bytes, _BUCKET)
        if not settings.offloads_optimizer:
            self.take(sum(self._part(each) for each in trained) * settings.element_bytes, _GRADIENTS)
        for param in trained:
            self._hook_into(param)

    def _hook_into(self, param: Param) -> None:
        """A parameter is whole while it gets its hook (``create_reduce_and_remove_grad_hooks``)."""
        n_bytes = self._part(param) * param.element_bytes
        whole = self.take(n_bytes * self.settings.world, _HOOKED)
        if self.settings.offloads_params and param.elements > self.settings.persistence:
            self.brief(n_bytes, _HOOKED)
        self.free(whole)

    def _divide(self) -> None:
        """A model that the engine finds whole: one parameter after the other
        (``_convert_to_zero_parameters``).
        """
        values = largest_units(self.job)
        for weight in self.weights:
            width = ELEMENT_BYTES[weight.dtype]
            elements = round(weight.count * values[weight.unit])
            if weight.packed:
                elements, width = packed_elements(self.job, elements)
            self._keep_part(
                elements, width, "adapters" if weight.adapter else "weights", trained=weight.requires_gradient
            )
            self.free(weight.slot)

    def _sub_groups(self, members: list[Param]) -> Iterator[list[Param]]:
        """``_create_fp16_sub_groups``: a group of the optimizer in pieces of at least so many elements."""
        group: list[Param] = []
        elements = 0
        for each in members:
            group.append(each)
            elements += self._part(each)
            if elements >= self.settings.sub_group:
                yield group
                group, elements = [], 0
        if group:
            yield group

    def micro_step(self, parts: list[Part], phases: Pass) -> list[int]:
        """A micro-step, at whose beginning prefetch starts anew."""
        self._own.coordinator.new_pass(self._own.live.values())
        return super().micro_step(parts, phases)

    def run_aside(
        self, parts: list[Part], cached: list[Instance] | None = None, *, waits: bool = False
    ) -> list[Instance]:
        """A pass of a second model starts prefetch of its own engine anew, at its beginning and at its end.

        Source: DeepSpeed 0.19.8 runtime/zero/parameter_offload.py _start_of_forward_hook,
        _end_of_forward_hook.
        """
        if not self._reference.live or all(parts is not each for each in (*self.before, *self.after)):
            return super().run_aside(parts, cached, waits=waits)
        self._now = reference = self._reference
        reference.coordinator.new_pass(reference.live.values())
        for module in reference.around:
            reference.coordinator.fetch(module, forward=True, recomputes=False)
        made = super().run_aside(parts, waits=waits)
        reference.coordinator.new_pass(reference.live.values())
        self._now = self._own
        return made

    def forward(self, part: Instance) -> None:
        """The forward of a part; a layer is a module itself."""
        is_module, module = part.name.startswith("layer"), self._now.modules[part.name][0]
        if self._read is not None and part.name == EMBEDDINGS:
            self._own.coordinator.fetch(self._outer, forward=True, recomputes=False)
        if is_module or module.own:
            self._now.coordinator.fetch(module, forward=True, recomputes=False)
        super().forward(part)
        if is_module or module.own:
            self._now.coordinator.release(module, forward=True)
        if self._read is not None and part.name == HEAD:
            self._own.coordinator.release(self._outer, forward=True)

    def backward(self, part: Instance) -> None:
        """The backward of a part, within that of the model."""
        if self._read is not None and part.name == HEAD:
            self._own.coordinator.fetch(self._outer, forward=False, recomputes=False)
        super().backward(part)
        if self._read is not None and part.name == EMBEDDINGS:
            self._own.coordinator.release(self._outer, forward=False)

    def at(self, part: Instance, mark: Mark, *, recomputes: bool) -> None:
        """A hook of a module."""
        module = self._now.modules[part.name][mark.number]
        if module is self._read:
            if mark.moment == "before_forward":
                self._read_head()
            return
        if mark.number == 0 and not (part.name.startswith("layer") or module.own):
            return
        forward = mark.moment in ("before_forward", "after_forward")
        if mark.moment in ("before_forward", "before_backward"):
            self._now.coordinator.fetch(module, forward=forward, recomputes=forward and recomputes)
        else:
            self._now.coordinator.release(module, forward=forward)

    def _read_head(self) -> None:
        """``_inject_parameters``: the weight is gathered where it is not whole, and becomes the model's.

        Source: DeepSpeed 0.19.8 runtime/zero/parameter_offload.py ZeROOrderedDict.
        """
        if self._read is not None and not self._outer.own:
            self._outer.own += self._read.own
        self._own.coordinator.gather_now(self._outer.own)

    def gradient(self, param: Param, slot: int) -> None:
        """``reduce_independent_p_g_buckets_and_remove_grads``:
        larger gradients than the bucket stay where they are.
        """
        limit = self.settings.bucket
        if self._bucket and self._filled + param.elements > limit:
            self._reduce()
        self._filled += param.elements
        if self._filled <= limit:
            self.free_late(slot, self._gradient_lag)
            self._bucket.append((param, None))
        else:
            self._bucket.append((param, slot))

    def end_of_backward(self, phases: Pass) -> None:
        """``independent_gradient_partition_epilogue``, where the host waits for all gradients;
        then ``backward_epilogue``: what no hook has released.

        That comes back before anything else is gathered, because the host also waits for each batch.
        Source: accelerate 1.15.0 utils/operations.py send_to_device (not ``non_blocking``).
        """
        del phases
        self._reduce()
        self._own.coordinator.end_of_backward()
        self.stream.wait()

    def step(self) -> None:
        """``step``: everything is released, and the host reads the norm of all gradients (utils.py
        ``is_invalid_grad_norm``); then sub-group by sub-group.  Small parameters are whole again at the end.
        """
        settings = self.settings
        self._own.coordinator.release_all(self._own.live.values())
        if not settings.offloads_optimizer:
            if self.job.recipe.numerics.precision == "fp16-mixed":
                self._check_overflow()
            for each in (each for group in self._groups for each in group):
                self.brief(self._part(each) * FP64, _NORM)
        self.stream.wait()
        if not settings.offloads_optimizer:
            for group in self._groups:
                elements = self._elements(group)
                flat = self.take(elements * settings.element_bytes, _FLAT) if len(group) > 1 else None
                wide = self.take(elements * FP32, _WIDE) if settings.element_bytes < FP32 else flat
                if wide is not flat:
                    self.free(flat)
                self.update(elements)
                self.free(wide)
        self._own.coordinator.gather_now(live for live in self._own.live.values() if live.persists)
        for live in self._own.live.values():
            if live.param.trained:
                # ``invalidate_secondary_tensor``: it has the weights of before.
                self.free(live.second)
                live.second = None

    def _check_overflow(self) -> None:
        """``has_overflow``, in fp16 alone: ``isinf`` compares absolute values of all gradients,
        and ``isnan`` the gradients themselves.
        """
        elements = sum(self._elements(group) for group in self._groups)
        absolute = self.take(elements * self.settings.element_bytes, _OVERFLOW)
        self.brief(elements, _OVERFLOW)
        self.free(absolute)
        self.brief(elements, _OVERFLOW)

    def _reduce(self) -> None:
        """``__avg_scatter_grads``, ``partition_grads``: several gradients, or one that needs padding,
        are copied together.
        """
        bucket, self._bucket, self._filled = self._bucket, [], 0
        if not bucket:
            return
        world, width = self.settings.world, self.settings.element_bytes
        padded = sum(self._part(each) for each, _ in bucket) * world
        together = len(bucket) > 1 or padded != bucket[0][0].elements
        sent = self.take(padded * width, _SENT) if together else None
        for param, slot in bucket:
            part = self._part(param)
            if self.settings.offloads_optimizer:
                uploaded = self.take(part * width, _PART)
                if self.boundary:
                    self.brief(min(part, _NORM_PART) * FP64, _NORM_ON_WAY)
                    self.brief(part * FP32, _HOST_COPY)
                self.free(uploaded)
            self.free_late(slot, self._gradient_lag)
        self.free(sent)

    def _part(self, param: Param) -> int:
        return self._own.coordinator.part(param)

    def _elements(self, group: list[Param]) -> int:
        return sum(self._part(each) for each in group)
