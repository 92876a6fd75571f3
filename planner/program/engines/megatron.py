"""Megatron-Core's DDP and distributed optimizer: every trained weight lies in one buffer of weights and has
its place in one buffer of gradients, which is there from the start; each GPU updates its part of both.

The products of Transformer Engine add to the buffer of gradients, where the two are fused; what comes as a
tensor (norms, biases, the token table, a dummy for the head; else all) is added by a hook and let go.
Source: megatron-core 0.16.1 distributed/param_and_grad_buffer.py _ParamAndGradBuffer,
distributed_data_parallel.py _make_backward_post_hook, optimizer/distrib_optimizer.py DistributedOptimizer,
_copy_model_grads_to_main_grads, tensor_parallel/layers.py (the buffer ``mpu``); TransformerEngine d0067d0d
pytorch/optimizers/fused_adam.py, module/base.py get_dummy_wgrad; ms-swift 3602360a5 (2026-08-22)
megatron/trainers/base.py prepare_model, utils/megatron_lm_utils.py wrap_model, warmup_jit_function, which
empties the cache; mcore_adapter 0.10.0 trainer/trainer.py _prepare_model, which does not.
With products in 8 bits each matrix of a layer has a copy of its weight in 8 bits, made in the first step
and written again in each; or, kept in 8 bits, lies in a buffer of its own, and turned beside it.  Masters are
in fp32 then, unless scaling is delayed.  Those of a checkpoint in FP8 are views of whole matrices.
Source of that: megatron-core 0.16.1 extensions/transformer_engine.py:671 (``is_first_microbatch``),
optimizer/optimizer_config.py:356, distrib_optimizer.py:383 (``model_param.float().view(-1)``); mcore-bridge
f020e479 bridge/gpt_bridge.py:203 (``del param.get_high_precision_init_val``); TransformerEngine d0067d0d
pytorch/tensor/utils.py replace_raw_data, post_all_gather_processing.
Ignored: padding of buffers, at most 128 bytes for each parameter and 2 KiB for each GPU.
"""

from __future__ import annotations

from planner.anatomy.quantized_matrices import EXPERTS
from planner.domain.recipes.fp8 import keeps_fp8_weights
from planner.domain.recipes.fp8_scaling import scaling_of
from planner.domain.recipes.parallel import HEAD
from planner.domain.stack_values import AdamStates, MainGradients
from planner.domain.term import TermName
from planner.program.job import Job
from planner.program.load import load_whole, take_workspaces
from planner.program.ops.tensors import ELEMENT_BYTES, Unit
from planner.program.parameters import Weight
from planner.program.request_stream import Instance, RequestStream
from planner.program.runtime import Part, Pass, Runtime
from planner.program.update.states import n_elements

_STATES: dict[AdamStates, tuple[tuple[int, ...], int]] = {
    "masters": ((4, 4), 4),
    "precise": ((2, 4, 4), 0),
    "precise_bf16": ((2, 2, 2), 0),
}
"""Bytes of each element: of states made in the first step, and of a master that the optimizer makes before.
A precise optimizer keeps the lower half of an fp32 master first (``store_param_remainders``)."""
_WIDTH: dict[MainGradients, int] = {"fp32": 4, "bf16": 2}


def _is_multiplied(weight: Weight) -> bool:
    """Whether Transformer Engine multiplies it, and not Megatron's own head."""
    return weight.kind == "matrix" and not weight.outside


class Megatron(Runtime):
    """One process."""

    adds_gradients = receives_ahead = False

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self._has_states = False
        self._scaling = scaling_of(job.recipe.numerics, job.hardware.gpu)
        self._keeps_narrow = keeps_fp8_weights(job.recipe.numerics.fp8)

    def load(self) -> None:
        """The model, the buffers that weights move to, and masters; then the cache is emptied."""
        self.weights = load_whole(self.stream, self.job)
        trained = [each for each in self.weights if each.trained]
        sizes = [n_elements(self.job, each) for each in trained]
        width, stream = _WIDTH[self.job.stack.main_gradients], self.stream
        kept: TermName = "weights" if self.job.recipe.adapter is None else "adapters"
        widths = [1 if self._is_narrow(each) else ELEMENT_BYTES[each.dtype] for each in trained]
        moved = sum(size * each for each, size in zip(widths, sizes, strict=True))
        slot = self._take(moved, kept, "param_data")
        self._take(sum(sizes) * width, "gradients", "grad_data")
        for each in trained:
            stream.free(each.slot)
            each.slot = slot
        self._take_narrow_weights(trained)
        self._make_masters(trained)
        stream.empty_cache()
        stream.enter("forward")
        take_workspaces(stream, self.job)
        self._take_kept_buffers()

    def _make_masters(self, trained: list[Weight]) -> None:
        """``shard_model_param.clone().float()`` of each, the last one first, unless the optimizer keeps
        what is left of it.  ``whole_masters``: a view of all of a matrix.
        """
        width = self._state_bytes[1]
        if not width:
            return
        for each in reversed(trained):
            own = self._own(each)
            if self._is_narrow(each) and self.job.stack.whole_masters:
                self._take(n_elements(self.job, each) * width, "master_weights", "float")
                continue
            clone = self._take(own * ELEMENT_BYTES[each.dtype], "master_weights", "clone")
            self._take(own * width, "master_weights", "float")
            self.stream.free(clone)

    def _is_narrow(self, weight: Weight) -> bool:
        """Whether it is kept in 8 bits alone."""
        return self._keeps_narrow and _is_multiplied(weight)

    def _take_narrow_weights(self, trained: list[Weight]) -> None:
        """Beside weights in 16 bits their copies in 8, both ways; beside those in 8 bits what is turned."""
        how = self._scaling
        if how is None:
            return
        sides = int(not self._keeps_narrow) + int(how.turned)
        width = 1 + (0 if how.square else how.scale_bytes)
        for each in trained:
            if _is_multiplied(each):
                for _ in range(sides):
                    self._take(n_elements(self.job, each) * width, "weights", "quantize")

    @property
    def _state_bytes(self) -> tuple[tuple[int, ...], int]:
        states, master = _STATES[self.job.stack.adam_states]
        if not master and self._scaling is not None and not self._scaling.delayed:
            return states[1:], ELEMENT_BYTES["fp32"]
        return states, master

    def _own(self, weight: Weight) -> float:
        """Elements that this GPU updates; GPUs that divide other matrices have experts whole."""
        shards = int(self.job.optimizer_shards)
        if f" {EXPERTS}" in weight.name:
            parallel = self.job.recipe.parallel
            shards = shards * parallel.tensor // parallel.expert_gpus
        return n_elements(self.job, weight) / shards

    def _take_kept_buffers(self) -> None:
        """All tokens before the head where GPUs divide them, and a dummy gradient of each shape of matrix
        where products add theirs themselves.
        """
        job, model = self.job, self.job.model
        if model.parts > 1 and (model.stage is None or model.stage.has(HEAD)):
            place = ("head", "", "mpu")
            self.stream.allocate(
                Unit.TOKENS, model.head.in_features * job.regime.compute, "other_temporaries", place
            )
        if not job.stack.adds_gradients:
            return
        shapes = {
            each.shape for each in self.weights if each.trained and each.kind == "matrix" and not each.outside
        }
        for shape in sorted(shapes, key=str):
            dummy = Weight("dummy", "matrix", shape, job.recipe.numerics.load_dtype, trained=False)
            self.stream.allocate(
                dummy.unit, dummy.unit_bytes, "other_temporaries", ("optimizer", "", "dummy_wgrad")
            )

    def _take(self, n_bytes: float, term: TermName, op: str) -> int:
        return self.stream.allocate(Unit.ONE, n_bytes, term, ("optimizer", "", op))

    def micro_step(self, parts: list[Part], phases: Pass) -> list[int]:
        """No gradient outlives its hook."""
        super().micro_step(parts, phases)
        return []

    def backward(self, part: Instance) -> None:
        """At each gradient its hook adds it to the buffer."""
        for events, mark in part.between_marks("backward", ("gradient",)):
            self.stream.events += events
            if mark is not None and mark.slot is not None:
                self.free(part.slot(mark.slot))

    def optimizer_step(self, gradients: list[int]) -> None:
        """States in the first step; where gradients are summed in bf16, a copy of this GPU's part in fp32,
        unless the optimizer reads bf16.  What host RAM has comes back in fp32, one weight after the other.

        Source of that: megatron-core 0.16.1 optimizer/cpu_offloading/hybrid_optimizer.py
        param_copy_back_gpu_hook; torch 2.13 aten/src/ATen/native/cuda/Copy.cu (``conversion_device``).
        """
        del gradients
        stream, job = self.stream, self.job
        stream.enter("optimizer_step")
        trained = [each for each in self.weights if each.trained]
        copies: list[int] = []
        if self._state_bytes[1] and _WIDTH[job.stack.main_gradients] < _WIDTH["fp32"]:
            copies = [self._take(4 * self._own(each), "optimizer_temporaries", "float") for each in trained]
        if job.recipe.offloads_optimizer:
            for each in trained:
                stream.free(self._take(4 * self._own(each), "optimizer_temporaries", "copy_"))
        elif not self._has_states:
            self._has_states = True
            for each in trained:
                for width in self._state_bytes[0]:
                    self.states.append(self._take(width * self._own(each), "optimizer_states", "state"))
        self.free(*copies)
