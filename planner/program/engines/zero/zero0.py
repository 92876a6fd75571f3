"""DeepSpeed without ZeRO: every GPU has all weights, all gradients, and fp32 masters of what is trained.

Source: DeepSpeed 0.19.8 runtime/engine.py ``_configure_fp16_optimizer`` (for bf16, too) and
``buffered_allreduce_fallback``, runtime/fp16/unfused_optimizer.py ``FP16_UnfusedOptimizer``, which takes any
optimizer but DeepSpeed's own; each method names its counterpart.  In fp32 the optimizer is not wrapped.
Ignored: the counters of the check for overflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from planner.domain.term import TermName
from planner.program.engines.params import Param
from planner.program.engines.zero.deepspeed import DeepSpeed, Purpose
from planner.program.engines.zero.deepspeed_settings import FP32
from planner.program.job import Job
from planner.program.ops.tensors import ELEMENT_BYTES, Dtype
from planner.program.parameters import Weight
from planner.program.request_stream import RequestStream
from planner.program.runtime import Pass
from planner.program.update.optimizer import optimizer_step

_CALL_ELEMENTS = 500_000_000
"""A call of the all-reduce ends with the gradient that goes beyond this (``MEMORY_OPT_ALLREDUCE_SIZE``)."""
_SENT = Purpose("flatten(gradients)", "gradient_buckets")
_NORM = Purpose("norm in fp32", "optimizer_temporaries")


class Zero0(DeepSpeed):
    """One rank under stage 0."""

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self._kept: dict[Param, int] = {}
        self._stepped: list[Weight] = []
        self._has_masters = self.settings.element_bytes < FP32

    def set_up(self) -> None:
        """``__init__`` and ``initialize_optimizer_states``: masters, then a step over gradients of zeros."""
        trained = [each for each in self.weights if each.trained]
        groups = [each for decays in (True, False) for each in trained if each.decays == decays]
        if not self._has_masters:
            self._stepped = groups
            return
        for each in groups:
            clone = self._like(each, each.dtype, "clone", "master_weights")
            self._stepped.append(replace(each, dtype="fp32"))
            self._like(each, "fp32", "fp32_group", "master_weights")
            self.free(clone)
        zeros = [self._like(each, each.dtype, "zeros", "optimizer_temporaries") for each in groups]
        zeros += self._wide_gradients()
        self._update()
        self.free(*zeros)

    def gradient(self, param: Param, slot: int) -> None:
        """They stay where they are; autograd adds those of later micro-steps in place."""
        if param in self._kept:
            self.free(slot)
        else:
            self._kept[param] = slot

    def end_of_backward(self, phases: Pass) -> None:
        """``allreduce_no_retain``: several gradients are copied together, summed and copied back."""
        if not phases.is_last:
            return
        for call in _calls(each for each in self.trained if each in self._kept):
            if len(call) > 1:
                self.brief(sum(each.n_bytes for each in call), _SENT)

    def step(self) -> None:
        """``step``: norms of the weights, all gradients in fp32, then the optimizer."""
        wide: list[int] = []
        if self._has_masters:
            for param in self.trained:
                self.brief(param.elements * FP32, _NORM)
            wide = self._wide_gradients()
        self._update()
        self.free(*wide, *self._kept.values())
        self._kept = {}

    def _update(self) -> None:
        optimizer_step(self.stream, self.job, self._stepped, first=not self._has_states)
        self._has_states = True

    def _wide_gradients(self) -> list[int]:
        return [self._like(each, "fp32", "grad in fp32", "optimizer_temporaries") for each in self._stepped]

    def _like(self, weight: Weight, dtype: Dtype, op: str, term: TermName) -> int:
        n_bytes, place = weight.count * ELEMENT_BYTES[dtype], (self.buffers, weight.name, op)
        return self.stream.allocate(weight.unit, n_bytes, term, place)


def _calls(gradients: Iterable[Param]) -> Iterator[list[Param]]:
    """What is summed together."""
    call: list[Param] = []
    elements = 0
    for each in gradients:
        call.append(each)
        elements += each.elements
        if elements > _CALL_ELEMENTS:
            yield call
            call, elements = [], 0
    if call:
        yield call
