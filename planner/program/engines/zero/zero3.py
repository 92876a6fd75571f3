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

from collections.abc import Sequence

from planner.program.engines.groups import EMBEDDINGS, HEAD
from planner.program.engines.params import Param
from planner.program.engines.zero.deepspeed import (
    FP64,
    REDUCE_STREAM,
    Purpose,
)
from planner.program.engines.zero.deepspeed_settings import FP32
from planner.program.engines.zero.divided_model import DividedModel
from planner.program.engines.zero.gathers import HALF, Live, Module
from planner.program.engines.zero.zero3_start import Zero3Start
from planner.program.job import Job
from planner.program.ops.tensors import Mark
from planner.program.request_stream import Instance, RequestStream
from planner.program.runtime import Part, Pass, Runtime

_SENT = Purpose("reduce_scatter_coalesced", "gradient_buckets", REDUCE_STREAM)
_QUANTIZED = Purpose("all_to_all_quant_reduce", "gradient_buckets", REDUCE_STREAM)
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

# The module between the layers and the head runs backward.
_BEHIND_LAYERS = (HEAD, 1, "before_backward")
# Modules that a layer hands its input by name.
_BY_NAME = (("self_attn",), ("linear_attn",))


class Zero3(Zero3Start):
    """One rank; all have equal parts of every parameter."""

    learns_order = True
    hears = ("before_forward", "read", "after_forward", "before_backward", "after_backward", "gradient")

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self._has_hooks, self._again = True, set[Module]()
        self._bucket: list[tuple[Param, int | None]] = []
        self._filled = 0
        self._held: dict[Module, list[tuple[Param, int]]] = {}
        waits = self.settings.offloads_optimizer and job.stack.zero3_waits_for_copies
        self._gradient_lag = 0 if waits else _GRADIENT_LAG

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
        """The model has a hook on what it returns.  TRL's trainers have read their metrics before, for which
        the host waits: trl 1.16.0 trainer/dpo_trainer.py _compute_loss, sft_trainer.py compute_loss.
        """
        stack = self.job.stack
        reads = stack.loss_pieces == "tiles" or stack.logit_metrics != "none"
        if reads or self.job.recipe.has_own_loss:
            self.stream.wait()
        self._own.coordinator.makes_graph = False
        for each in self._own.around[:-1]:
            self._own.coordinator.fetch(each, forward=False, recomputes=False)

    def backward(self, part: Instance) -> None:
        """The backward of a part, within that of the model."""
        super().backward(part)
        if part.name == EMBEDDINGS:
            for each in self._own.around:
                self._own.coordinator.release(each, forward=False)

    def at(self, part: Instance, mark: Mark, *, recomputes: bool) -> None:
        """A hook of a module."""
        module = self._now.modules[part.name][mark.number]
        if module in self._now.inside:
            return
        self._before(part, mark, module)
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
            if not forward:
                self._add_held(module)
            coordinator.release(module, forward=forward)

    def _before(self, part: Instance, mark: Mark, module: Module) -> None:
        """What comes before the hook: a weight that is read, and behind the layers the hook of the model
        inside of the one that has the head.
        """
        is_early = mark.moment == "before_forward" and module in self._now.early
        if is_early or mark.moment == "read":
            self._read(module, self._now.readers[module])
        elif (part.name, mark.number, mark.moment) == _BEHIND_LAYERS:
            self._now.coordinator.fetch(self._now.around[-1], forward=False, recomputes=False)

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
        """Those of a leaf wait for the end of its backward (``reduce_leaf_module_grads``)."""
        leaf = self._own.leaf_of.get(param)
        if leaf is None:
            self._add(param, slot)
        else:
            self._held.setdefault(leaf, []).append((param, slot))

    def _add_held(self, leaf: Module) -> None:
        """Gradients of a leaf in the order of the optimizer's groups."""
        held = self._held.pop(leaf, [])
        for param, slot in sorted(held, key=lambda each: (not each[0].decays, each[0].number)):
            self._add(param, slot)

    def _add(self, param: Param, slot: int) -> None:
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
        for leaf in [*self._held]:
            self._add_held(leaf)
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
                self._own.coordinator.forget_second(live)
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
        if self.settings.quantizes_gradients:
            sent = self._reduce_quantized([param for param, _ in bucket])
        elif self.settings.reduces_wide:
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

    def _reduce_quantized(self, params: list[Param]) -> list[int]:
        """``all_to_all_quant_reduce``: one matrix after the other goes to the GPUs of the node in 4 bits, and
        their sums to the other nodes; gives what arrives, in fp16.

        What a matrix takes is there until the next one has as much; vectors, and matrices that do not
        divide, go as they are.
        Source: DeepSpeed 0.19.8 runtime/comm/coalesced_collectives.py;
        ops/csrc/quantization/pt_binding.cpp ds_swizzle_quant, quantized_reduction.
        Ignored: scales, of which one is for a row or more.
        """
        world, nodes = self.settings.world, int(self.job.hardware.nodes)
        in_node = world // nodes
        kept: list[int | None] = [None] * 5
        made: list[int] = []
        for each in params:
            if not each.decays or each.elements % (2 * world):
                if each.elements % world:
                    made.append(self.take(self._part(each) * world * self.settings.element_bytes, _SENT))
                continue
            inside, across = each.elements // 2, each.elements // 2 // in_node
            for number, n_bytes in enumerate((inside, inside, across, across, 4 * across)):
                slot = self.take(n_bytes, _QUANTIZED)
                self.free(kept[number])
                kept[number] = slot
            added = None
            for _ in range(nodes + 1):
                total = self.take(each.elements // world * HALF, _QUANTIZED)
                self.free(added)
                added = total
            made += [] if added is None else [added]
        self.free(*kept)
        return made

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
