"""What the stages of DeepSpeed's ZeRO share: a runtime that acts at the marks of the model,
and memory of its own.

Source: DeepSpeed 0.19.8 runtime/engine.py, runtime/zero.  What is offloaded is host memory,
and not in the stream.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.term import TermName
from planner.program.engines.params import Param, params_of
from planner.program.engines.zero.deepspeed_settings import FP32, settings_of
from planner.program.job import Job
from planner.program.load import load_whole, take_workspaces
from planner.program.ops.tensors import Mark, PartStage, Unit
from planner.program.parameters import Weight
from planner.program.request_stream import Instance, RequestStream
from planner.program.runtime import Part, Pass, Runtime
from planner.program.update.optimizer import optimizer_step

MAIN_STREAM, GATHER_STREAM, REDUCE_STREAM, SECOND_GATHER_STREAM, SCORING_GATHER_STREAM = range(5)
FP64 = 8


@dataclass(frozen=True, slots=True)
class Purpose:
    """What an allocation of the engine is: DeepSpeed's own name for it, its term,
    and the CUDA stream it is made on.
    """

    name: str
    term: TermName
    stream: int = MAIN_STREAM


_FLAT = Purpose("flatten(averaged_gradients)", "optimizer_temporaries")
_WIDE = Purpose("flat gradients in fp32", "optimizer_temporaries")


class DeepSpeed(Runtime):
    """One rank.  Stages override what happens at each moment;
    ``hears``: the moments of the model at which it acts; ``buffers``: what its own memory is called.
    """

    adds_gradients = False
    buffers = "buffers of DeepSpeed"
    hears: tuple[str, ...] = ("gradient",)

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self.settings = settings_of(job)
        self.params: dict[str, list[Param]] = {}
        self.trained: list[Param] = []
        self.boundary = True
        self._in_backward = False
        self._has_states = False

    def load(self) -> None:
        """Every parameter, then what the engine sets up."""
        self.params = params_of(self.job, self.parts)
        each_once = dict.fromkeys(param for own in self.params.values() for param in own)
        self.trained = [param for param in each_once if param.trained]
        self.load_weights()
        self.set_up()
        self.stream.enter("forward")
        take_workspaces(self.stream, self.job)

    def micro_step(self, parts: list[Part], phases: Pass) -> list[int]:
        """A micro-step whose gradients the engine takes."""
        self.boundary, self._in_backward = phases.is_last, False
        super().micro_step(parts, phases)
        return []

    def forward(self, part: Instance) -> None:
        """The forward pass of one part with its marks."""
        self._run(part, "forward")

    def backward(self, part: Instance) -> None:
        """The backward pass of one part with its marks."""
        if not self._in_backward:
            self._in_backward = True
            self.begin_backward()
        self._run(part, "backward")

    def _run(self, part: Instance, stage: PartStage) -> None:
        written = self.stream.events
        for events, mark in part.between_marks(stage, self.hears):
            written += events
            if mark is None:
                return
            if mark.moment == "gradient":
                self._ready(part, mark)
            else:
                self.at(part, mark, recomputes=stage == "backward")

    def _ready(self, part: Instance, mark: Mark) -> None:
        """A gradient is there."""
        slot = None if mark.slot is None else part.slot(mark.slot)
        assert slot is not None
        self.gradient(self.params[part.name][mark.number], slot)

    def optimizer_step(self, gradients: list[int]) -> None:
        """The engine's own step."""
        del gradients
        self.stream.enter("optimizer_step")
        self.step()
        self._has_states = True

    def load_weights(self) -> None:
        """The 16-bit module is on the card whole (engine.py ``_configure_distributed_model``)."""
        self.weights = load_whole(self.stream, self.job)

    def set_up(self) -> None:
        """Everything is loaded."""
        raise NotImplementedError

    def begin_backward(self) -> None:
        """The backward pass is about to begin."""

    def at(self, part: Instance, mark: Mark, *, recomputes: bool) -> None:
        """A module is entered or left; ``recomputes``: while the backward pass runs."""

    def gradient(self, param: Param, slot: int) -> None:
        """The gradient of ``param`` is complete."""
        raise NotImplementedError

    def step(self) -> None:
        """The optimizer's step."""
        raise NotImplementedError

    def take(self, n_bytes: int, what: Purpose, param: Param | None = None) -> int:
        """Allocate; the caller frees it or keeps it.  Without ``overlap_comm`` all is in one stream."""
        place = param.place if param else (self.buffers, "")
        stream = what.stream if self.settings.overlaps else MAIN_STREAM
        return self.stream.allocate(Unit.ONE, n_bytes, what.term, (*place, what.name), stream)

    def free_late(self, slot: int | None, lag: int) -> None:
        """Free what another stream still uses, as :meth:`RequestStream.free_late` says."""
        if slot is not None and self.settings.overlaps:
            self.stream.free_late(slot, lag)
        else:
            self.free(slot)

    def wait(self, left: int) -> None:
        """The host waits, as :meth:`RequestStream.wait` says."""
        self.stream.wait(left)

    def brief(self, n_bytes: int, what: Purpose) -> None:
        """Allocate and free at once: a temporary of one call."""
        self.free(self.take(n_bytes, what))

    def wide_gradients(self, elements: int, *, several: bool) -> int | None:
        """Gradients of a group in fp32: ``several`` are flattened first."""
        flat = self.take(elements * self.settings.element_bytes, _FLAT) if several else None
        if self.settings.element_bytes >= FP32:
            return flat
        wide = self.take(elements * FP32, _WIDE)
        self.free(flat)
        return wide

    def update(self, elements: int) -> None:
        """The optimizer's step over one flat fp32 tensor on the card, the first of which makes its states."""
        flat = Weight("flat", "matrix", ((Unit.ONE, elements),), "fp32", trained=True)
        optimizer_step(self.stream, self.job, [flat], first=not self._has_states)
