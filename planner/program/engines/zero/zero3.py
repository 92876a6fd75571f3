"""ZeRO stage 3: what DeepSpeed's ``DeepSpeedZeroOptimizer_Stage3`` and its parameter offload allocate on one
rank.

Source: DeepSpeed 0.19.8 runtime/zero/stage3.py, partition_parameters.py,
runtime/comm/coalesced_collectives.py; each method names its counterpart.  Gradients are reduced by scattering
(``reduce_scatter``, a default), in a stream of their own.
A loss that reads the head's weight without calling the head makes it a parameter of the model that is
running (``register_external_parameter``): from then on it is whole as long as that model runs.
So do TRL's fused loss and Liger's (liger_kernel 0.8.5 transformers/model/llama.py
_liger_for_causal_lm_loss).
Ignored: host memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.domain.term import TermName
from planner.program.engines.groups import EMBEDDINGS, HEAD
from planner.program.engines.params import Param, largest_units, optimizer_groups, packed_elements, params_of
from planner.program.engines.zero.coordinator import Coordinator, Live, Module
from planner.program.engines.zero.deepspeed import (
    FP64,
    REDUCE_STREAM,
    SCORING_GATHER_STREAM,
    SECOND_GATHER_STREAM,
    DeepSpeed,
    Purpose,
)
from planner.program.engines.zero.deepspeed_settings import FP32, reference_settings
from planner.program.engines.zero.divided_model import DividedModel
from planner.program.job import Job, reward_job, second_job
from planner.program.load import load_whole
from planner.program.ops.tensors import ELEMENT_BYTES, Mark
from planner.program.request_stream import Instance, RequestStream
from planner.program.runtime import Part, Pass, Runtime

_WHOLE = Purpose("parameter before it is divided", "weights")
_CONVERTED = Purpose("partition in fp32", "master_weights")
_MASTER = Purpose("fp32_partitioned_groups_flat", "master_weights")
_INITIAL = Purpose("initialize_optimizer_states", "optimizer_temporaries")
_HOOKED = Purpose("_allgather_params_sequential", "gathered_parameters")
_BUCKET = Purpose("ipg_bucket.buffer", "gradient_buckets")
_GRADIENTS = Purpose("grad_partitions_flat_buffer", "gradients")
_SENT = Purpose("reduce_scatter_coalesced", "gradient_buckets", REDUCE_STREAM)
_WIDE_GRADIENT = Purpose("gradient in fp32", "gradient_buckets", REDUCE_STREAM)
_NARROW_PART = Purpose("gradient partition", "gradient_buckets", REDUCE_STREAM)
_PART = Purpose("gradient partition on its way to the host", "gradient_buckets", REDUCE_STREAM)
_NORM_ON_WAY = Purpose("norm in fp64", "optimizer_temporaries", REDUCE_STREAM)
_HOST_COPY = Purpose("gradient partition in fp32", "gradient_buckets", REDUCE_STREAM)
_OVERFLOW = Purpose("isinf, isnan(grad_partitions_flat_buffer)", "optimizer_temporaries", REDUCE_STREAM)
_NORM = Purpose("norm in fp64", "optimizer_temporaries")
# The host waits for the oldest where more than ``max_param_reduce_events`` = 2 buckets are being reduced.
# Each has a gradient or more, which that stream uses until then.
# Source: stage3.py __add_grad_to_ipg_bucket (``record_stream``), __reduce_and_partition_ipg_grads.
_GRADIENT_LAG = 3
# Elements per part when a gradient's norm is taken in fp64.  Source: stage3.py _constant_buffered_norm2.
_NORM_PART = 250_000_000

# Modules that a layer hands its input by name.
_BY_NAME = (("self_attn",), ("linear_attn",))


class Zero3(DeepSpeed):
    """One rank; all have equal parts of every parameter."""

    learns_order = True
    hears = ("before_forward", "read", "after_forward", "before_backward", "after_backward", "gradient")

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        n_around = 2 if job.recipe.adapter is None else 3 + job.stack.adapters_call_model
        around = tuple(Module() for _ in range(n_around + job.model.value_head))
        self._own = DividedModel(Coordinator(self), around=around)
        self._reference: DividedModel | None = None
        # That which scores, and that whose model runs.
        self._scoring = self._now = self._own
        self._shares = job.recipe.has_reference and job.recipe.adapter is not None
        self._has_hooks, self._again = True, set[Module]()
        self._trained_parts: list[int] = []
        self._untied: list[int] = []
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
        self._own.note(self.parts, self.params, self._read_by_loss(self.job))
        if self._shares:
            self._reference = self._own.without_adapters(self.compared)
        if self._loads_whole:
            self.weights = load_whole(self.stream, self.job)
            return
        self.stream.enter("load")
        base = [each for each in self._own.live if each.term != "adapters"]
        self._build(base, self.params)
        for param in self._own.live:
            if param.term == "adapters":
                self.stream.enter("adapters")
                self._divide_one(param)
        second, scoring = second_job(self.job), reward_job(self.job)
        if second is not None:
            self._reference = self._load_beside(second, self.compared, SECOND_GATHER_STREAM)
        if scoring is not None:
            self._scoring = self._load_beside(scoring, self.scoring, SCORING_GATHER_STREAM)

    @staticmethod
    def _read_by_loss(job: Job) -> str:
        """The head, where the loss reads its weight; else nothing."""
        return job.model.head.name if job.scenario.reads_head or job.recipe.loss == "liger" else ""

    def _load_beside(self, job: Job, parts: Sequence[Part], stream: int) -> DividedModel:
        """Another model, which an engine without an optimizer divides (trl 1.16.0 models/utils.py
        prepare_deepspeed); ``stream``: on which it gathers.
        """
        coordinator = Coordinator(self, reference_settings(self.job), stream)
        made = DividedModel(coordinator, around=(Module(), Module()))
        made.note(parts, params_of(job, parts), self._read_by_loss(job))
        self._build([*made.live], params_of(job, parts))
        return made

    def _build(self, base: Sequence[Param], params: Mapping[str, Sequence[Param]]) -> None:
        """A model is made, each parameter divided at once, and then filled from its checkpoint.

        A head that is tied to the token table is made before it is tied.  From then on only its own methods
        refer to it, until garbage is collected.  To be filled, each parameter is whole once more.
        Source: transformers 5.23 modeling_utils.py from_pretrained, integrations/deepspeed.py
        _load_state_dict_into_zero3_model; DeepSpeed 0.19.8 runtime/zero/partition_parameters.py
        _convert_to_deepspeed_param (``param.partition``...).
        """
        for param in base:
            self._divide_one(param)
        if not self.job.stack.runs_trainer:
            return
        for param in {*params[EMBEDDINGS]} & {*params[HEAD]}:
            whole = self.take(param.n_bytes, _WHOLE)
            if not self.settings.offloads_params:
                part = -(-param.elements // self.settings.world) * param.element_bytes
                self._untied.append(self.take(part, Purpose("ds_tensor", param.term)))
            self.free(whole)
        for param in base:
            self._gather_alone(param)

    @property
    def _loads_whole(self) -> bool:
        """Whether the model is on the card whole before the engine divides it:
        a k-bit one is made without ``zero.Init``.

        Source: transformers 5.23 modeling_utils.py get_init_context; deepspeed 0.19 runtime/engine.py
        _configure_distributed_model (``module.to(device)``).
        """
        return self.job.regime.quantized or not self.job.stack.divides_as_made

    def _divide_one(self, param: Param) -> None:
        """``_partition``: parts are made beside the whole parameter, which goes then."""
        whole, own = self.take(param.n_bytes, _WHOLE), self._own.live.get(param)
        if own is not None:
            self._own.coordinator.divide_inside(own)
        trained = own is not None and param.trained
        self._keep_part(param.elements, param.element_bytes, param.term, trained=trained)
        self.free(whole)

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
        if self.job.stack.runs_trainer and not self._loads_whole:
            self.free(*self._untied)
            # transformers 4.57 and 5.19 trainer.py _inner_training_loop (``accelerator.free_memory``).
            self.stream.empty_cache()
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
            self._gather_alone(param)

    def _gather_alone(self, param: Param) -> None:
        """A parameter is whole for a while: for its values, and for its hook
        (``create_reduce_and_remove_grad_hooks``).
        """
        n_bytes = self._part(param) * param.element_bytes
        whole = self.take(n_bytes * self.settings.world, _HOOKED)
        if self.job.stack.zero3_hooks_into_copies:
            self.brief(param.n_bytes, _HOOKED)
        elif self.settings.offloads_params and param.elements > self.settings.persistence:
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
        recipe = self.job.recipe
        if not (self.itself and self.before):
            self._now.coordinator.new_pass(self._now.live.values(), trains=True)
        self._own.coordinator.makes_graph = not (
            recipe.gradient_checkpointing and recipe.checkpoint_reentrant
        )
        self._again.clear()
        return super().micro_step(parts, phases)

    def run_aside(
        self, parts: Sequence[Part], cached: list[Instance] | None = None, *, waits: bool = False
    ) -> list[Instance]:
        """A pass without gradients, at whose beginning prefetch starts anew, too.

        Source: DeepSpeed 0.19.8 runtime/zero/parameter_offload.py _start_of_forward_hook.
        """
        coordinator = self._now.coordinator
        if self._has_hooks:
            coordinator.new_pass(self._now.live.values())
        makes_graph, coordinator.makes_graph = coordinator.makes_graph, False
        made = super().run_aside(parts, cached, waits=waits)
        coordinator.makes_graph = makes_graph
        return made

    def complete(self, prompts: Sequence[Part], token: Sequence[Part]) -> None:
        """All parameters are whole while completions are written, by a model without hooks.

        Source: switch ``zero3_rollouts``; trl 1.16.0 models/utils.py _unwrap_model_for_generation
        (``ds3_gather_for_generation``).
        """
        self._own.coordinator.gather_all(self._own.live.values())
        self._has_hooks = False
        super().complete(prompts, token)
        self._has_hooks = True
        if self.job.stack.zero3_rollouts == "forgets_order":
            self._own.coordinator.forget()
        self._own.coordinator.divide_all(self._own.live.values())

    def hand_weights(self) -> None:
        """Each parameter is whole while vLLM reads it; with adapters, which are merged for it, all at once.

        Source: trl 1.16.0 generation/vllm_generation.py _iter_named_params.
        Ignored: products of the merged adapters.
        """
        for several in self._handed():
            self._own.coordinator.gather_all(several)
            self._own.coordinator.divide_all(several)

    def _handed(self) -> list[list[Live]]:
        """What vLLM gets at a time; groups have as many layers each, and one has all around the layers.

        Source: ms-swift 4.6.0 rlhf_trainers/rollout_mixin.py split_batches.
        """
        live, at_once = [*self._own.live.values()], self.job.stack.zero3_rollouts == "handed_at_once"
        if at_once and self.job.stack.vllm_groups:
            layers = -(-sum(each.count for each in self.job.model.groups) // self.job.stack.vllm_groups)
            found: dict[int, list[Live]] = {}
            for each in live:
                name, _, number = each.param.place[0].partition(" ")
                found.setdefault(int(number) // layers if name == "layer" else -1, []).append(each)
            return [*found.values()]
        return [live] if at_once or self.job.recipe.adapter else [[each] for each in live]

    def run_itself(self, parts: Sequence[Part]) -> list[Instance]:
        """A pass of the policy; where it comes first, that which trains begins a new order after it."""
        made = super().run_itself(parts)
        if self.before:
            self._own.coordinator.new_pass(self._own.live.values(), trains=True)
        return made

    def run_beside(self, parts: Sequence[Part]) -> list[Instance]:
        """A pass of a second model, or of the same one without adapters."""
        return self._run_with(self._reference or self._own, parts)

    def run_scoring(self, parts: Sequence[Part]) -> list[Instance]:
        """A pass of a reward model with its own engine."""
        return self._run_with(self._scoring, parts)

    def _run_with(self, model: DividedModel, parts: Sequence[Part]) -> list[Instance]:
        self._now = model
        made = self.run_aside(parts)
        self._now = self._own
        return made

    def forward(self, part: Instance) -> None:
        """The forward of a part; a layer is a module itself."""
        if not self._has_hooks:
            Runtime.forward(self, part)
            return
        now, is_module = self._now, part.name.startswith("layer")
        module = now.modules[part.name][0]
        if part.name == EMBEDDINGS:
            for each in now.around:
                now.coordinator.fetch(each, forward=True, recomputes=False)
        if is_module or module.own:
            now.coordinator.fetch(module, forward=True, recomputes=False)
        super().forward(part)
        if is_module or module.own:
            now.coordinator.release(module, forward=True)
        if part.name == EMBEDDINGS and self.job.recipe.batch.padding != "packed":
            # transformers 5.23 masking_utils.py _ignore_causal_mask_sdpa (``padding_mask.all()``)
            self.stream.wait()
        if part.name == HEAD:
            now.coordinator.release(now.outer, forward=True)

    def begin_backward(self) -> None:
        """The model has a hook on what it returns.  Trainers of preferences have read their metrics before:
        trl 1.16.0 trainer/dpo_trainer.py _compute_loss.
        """
        if self.job.recipe.has_own_loss:
            self.stream.wait()
        self._own.coordinator.makes_graph = False
        self._own.coordinator.fetch(self._own.outer, forward=False, recomputes=False)

    def backward(self, part: Instance) -> None:
        """The backward of a part, within that of the model."""
        super().backward(part)
        if part.name == EMBEDDINGS:
            self._own.coordinator.release(self._own.outer, forward=False)

    def at(self, part: Instance, mark: Mark, *, recomputes: bool) -> None:
        """A hook of a module."""
        module = self._now.modules[part.name][mark.number]
        is_early = mark.moment == "before_forward" and module in self._now.early
        if is_early or mark.moment == "read":
            self._read(module, self._now.readers[module])
        if module is self._now.head or mark.moment == "read":
            return
        if mark.number == 0 and not (part.name.startswith("layer") or module.own):
            return
        coordinator, forward = self._now.coordinator, mark.moment in ("before_forward", "after_forward")
        if mark.moment in ("before_forward", "before_backward"):
            if module in self._now.wrappers:
                coordinator.fetch(self._now.wrappers[module], forward=True, recomputes=False)
            if forward and recomputes:
                self._again.add(module)
            coordinator.fetch(module, forward=forward, recomputes=forward and recomputes)
        elif forward or not self._misses(part, mark, module):
            coordinator.release(module, forward=forward)

    def _misses(self, part: Instance, mark: Mark, module: Module) -> bool:
        """Whether the hook behind a backward is not called: another pass ran the module since its forward,
        and no checkpoint has run it again; or the module has its input by name, as attention in its layer.

        So it is active until all of backward is over, or until it has run forward again.
        Source: DeepSpeed 0.19.8 runtime/zero/parameter_offload.py _post_backward_module_hook
        (``ds_grads_remaining = 0``), which is applied to positional inputs; transformers 5.23
        models/llama/modeling_llama.py (``self_attn(hidden_states=...)``).
        """
        job = self.job
        if self._now.paths[part.name][mark.number][-1:] in _BY_NAME:
            return True
        is_inside = mark.number == 0 and job.stack.recomputes_hooks and job.recipe.gradient_checkpointing
        again = self._shares or (bool(self.itself) and not self.before)
        asked_since = again and job.recipe.rollout is None and module not in self._again
        return asked_since and not (is_inside and part.name.startswith("layer"))

    def _read(self, module: Module, reader: Module) -> None:
        """``_inject_parameters``: the weight is gathered where it is not whole, and becomes the reader's.

        Source: DeepSpeed 0.19.8 runtime/zero/parameter_offload.py ZeROOrderedDict.
        """
        reader.own += [each for each in module.own if each not in reader.own]
        self._now.coordinator.gather_now(module.own)

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
        if not self.boundary:
            self._own.coordinator.end_of_graph()

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
                wide = self.wide_gradients(elements, several=len(group) > 1)
                self.update(elements)
                self.free(wide)
        self._own.coordinator.gather_now(live for live in self._own.live.values() if live.persists)
        for live in self._own.live.values():
            if live.param.trained:
                # ``invalidate_secondary_tensor``: it has the weights of before.
                self.free(live.second)
                live.second = None
        # The engine steps inside of backward (accelerate 1.15.0 utils/deepspeed.py), where the loss still is.
        self._own.coordinator.end_of_graph()

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
        if self.settings.reduces_wide:
            sent = self._reduce_wide([param for param, _ in bucket], padded if together else 0)
        else:
            sent = [self.take(padded * width, _SENT)] if together else []
        for param, slot in bucket:
            part = self._part(param)
            if self.settings.offloads_optimizer:
                uploaded = self.take(part * width, _PART)
                if self.boundary:
                    self.brief(min(part, _NORM_PART) * FP64, _NORM_ON_WAY)
                    if not self.job.stack.zero3_casts_on_host:
                        self.brief(part * FP32, _HOST_COPY)
                self.free(uploaded)
            self.free_late(slot, self._gradient_lag)
        self.free(*sent)

    def _reduce_wide(self, params: list[Param], padded: int) -> list[int]:
        """``__avg_scatter_grads`` in fp32: each gradient is cast, all are copied together,
        and the parts are cast back; gives these.
        """
        wide = [self.take(each.elements * FP32, _WIDE_GRADIENT) for each in params]
        sent = self.take(padded * FP32, _SENT) if padded else None
        width = self.settings.element_bytes
        parts = [self.take(self._part(each) * width, _NARROW_PART) for each in params]
        self.free(sent, *wide)
        return parts

    def _part(self, param: Param) -> int:
        return self._own.coordinator.part(param)

    def _elements(self, group: list[Param]) -> int:
        return sum(self._part(each) for each in group)
