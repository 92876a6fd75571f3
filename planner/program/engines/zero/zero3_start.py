"""ZeRO stage 3 until the first step: a model that is divided as it is made and then filled, or divided by the
engine that finds it whole, and the buffers of the engine.

Source: DeepSpeed 0.19.8 runtime/zero/stage3.py, partition_parameters.py; each method names its counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.domain.term import TermName
from planner.intake.leaf_modules import EXPERTS_FIRST, leaf_kinds
from planner.program.engines.groups import EMBEDDINGS, HEAD
from planner.program.engines.params import Param, largest_units, optimizer_groups, packed_elements, params_of
from planner.program.engines.zero.coordinator import Coordinator
from planner.program.engines.zero.deepspeed import (
    SCORING_GATHER_STREAM,
    SECOND_GATHER_STREAM,
    DeepSpeed,
    Purpose,
)
from planner.program.engines.zero.deepspeed_settings import FP32, reference_settings
from planner.program.engines.zero.divided_model import DividedModel
from planner.program.engines.zero.gathers import Module
from planner.program.job import Job, reward_job, second_job
from planner.program.load import load_whole
from planner.program.ops.tensors import ELEMENT_BYTES
from planner.program.request_stream import RequestStream
from planner.program.runtime import Part

_WHOLE = Purpose("parameter before it is divided", "weights")
_CONVERTED = Purpose("partition in fp32", "master_weights")
_MASTER = Purpose("fp32_partitioned_groups_flat", "master_weights")
_INITIAL = Purpose("initialize_optimizer_states", "optimizer_temporaries")
_HOOKED = Purpose("_allgather_params_sequential", "gathered_parameters")
_BUCKET = Purpose("ipg_bucket.buffer", "gradient_buckets")
_GRADIENTS = Purpose("grad_partitions_flat_buffer", "gradients")


class Zero3Start(DeepSpeed):
    """The parts of one rank; all have equal ones of every parameter."""

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        n_around = 2 if job.recipe.adapter is None else 3 + job.stack.adapters_call_model
        around = tuple(Module() for _ in range(n_around + job.model.value_head))
        leaves = leaf_kinds(job.stack.zero3_leaves, job.model)
        first = job.model.architecture in EXPERTS_FIRST
        self._own = DividedModel(Coordinator(self), around=around, leaves=leaves, experts_first=first)
        self._reference: DividedModel | None = None
        # That which scores, and that whose model runs.
        self._scoring = self._now = self._own
        self._shares = job.recipe.has_reference and job.recipe.adapter is not None
        self._trained_parts: list[int] = []
        self._untied: list[int] = []
        self._groups: list[list[Param]] = []

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
        _convert_to_deepspeed_param (methods that refer to their parameter).
        """
        for param in base:
            self._divide_one(param)
        if not self.job.stack.runs_trainer:
            return
        for param in {*params[EMBEDDINGS]} & {*params[HEAD]}:
            whole = self.take(param.n_bytes, _WHOLE)
            if not self.settings.offloads_params:
                world, hpz = self.settings.world, self.settings.hpz
                part = -(-param.elements // world) * param.element_bytes
                self._untied.append(self.take(part, Purpose("ds_tensor", param.term)))
                if hpz > 1:
                    second = Purpose("ds_secondary_tensor", param.term)
                    self._untied.append(self.take(part * world // hpz, second))
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

    def _part(self, param: Param) -> int:
        return self._own.coordinator.part(param)

    def _elements(self, group: list[Param]) -> int:
        return sum(self._part(each) for each in group)
