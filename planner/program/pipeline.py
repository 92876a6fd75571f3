"""The step of one group of a pipeline: micro-batches run forward and backward by a schedule,
and several are under way at once.

What arrives from other groups lies in buffers that are made once, one for each micro-batch.  What is sent
lies until the next one is: variables of the loop refer to it.  Megatron takes a tensor for what arrives,
until its micro-batch has gone back, and empties what it has sent (``receives_ahead``).
Source: torch 2.13 distributed/pipelining/stage.py (``_setup_forward_recv_info``,
``_setup_backward_recv_info``, forward_one_chunk, backward_one_chunk), schedules.py
Schedule1F1B._step_microbatches, _PipelineScheduleRuntime._step_microbatches; torchtitan e347b1e5e train.py
forward_backward_step; megatron-core 0.16.1 pipeline_parallel/schedules.py (``deallocate_output_tensor``),
p2p_communication.py.
Ignored: the first step's pass of one micro-batch that finds shapes, which needs no more than later passes.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from itertools import pairwise

from planner.domain.recipes.parallel import HEAD, TABLE, Stage
from planner.domain.term import Phase
from planner.program.ops.tensors import ELEMENT_BYTES
from planner.program.request_stream import Instance, RequestStream, instances
from planner.program.runtime import Part, Pass, Runtime, gradients_of
from planner.program.schedule import actions_of, shortened

_HEAD = "head"
_PHASES: tuple[tuple[Phase, Phase, Phase], ...] = (
    ("forward", "loss", "backward"),
    ("forward_2", "loss_2", "backward_2"),
)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Parts of a run of layers, as their first micro-batch and as later ones have them; ``first_layer``: its
    number on this group.
    """

    parts: list[Part]
    again: list[Part]
    first_layer: int


@dataclass(slots=True)
class _Round:
    """What is under way.  ``held``: parts of each pass forward that has not gone back, by chunk and
    micro-batch.

    ``last``: the pass whose output a variable refers to, and ``output`` what then frees it, once the pass has
    gone back; ``sent_back``: what frees the gradient that was sent last; ``gradients``: those of parameters.
    """

    held: dict[tuple[int, int], list[Instance]] = field(default_factory=dict)
    last: tuple[int, int] | None = None
    output: array[int] = field(default_factory=lambda: array("q"))
    sent_back: array[int] = field(default_factory=lambda: array("q"))
    gradients: list[int] = field(default_factory=list)
    arrived: dict[tuple[int, int], int] = field(default_factory=dict)


def run_pipeline(runtime: Runtime, parts: list[Part], again: list[Part]) -> None:
    """Loading, a first round with the optimizer's step, and later rounds; ``again``: the parts where
    gradients are there.
    """
    job = runtime.job
    stage = job.model.stage
    assert stage is not None
    chunks = [
        _Chunk(*each) for each in zip(_cut(parts, stage), _cut(again, stage), _starts(stage), strict=True)
    ]
    runtime.load()
    if runtime.receives_ahead:
        _make_buffers(runtime.stream, stage, chunks)
    rounds = int(job.recipe.batch.grad_accum) // stage.microbatches
    gradients = _round(runtime, chunks, _PHASES[0], found=False)
    runtime.optimizer_step(gradients)
    gradients = _round(runtime, chunks, _PHASES[1], found=False)
    if rounds > 1:
        _round(runtime, chunks, _PHASES[1], found=runtime.adds_gradients and bool(gradients))
    runtime.optimizer_step(gradients)


def _starts(stage: Stage) -> list[int]:
    return [sum(stage.chunks[:number]) for number in range(len(stage.chunks))]


def _cut(parts: list[Part], stage: Stage) -> list[list[Part]]:
    """The parts of each chunk: table and head belong to the first and the last one."""
    made: list[list[Part]] = [[] for _ in stage.chunks]
    left, number = list(stage.chunks), 0
    for part in parts:
        if part.name != "layer":
            made[-1 if part.name == _HEAD else 0].append(part)
            continue
        count = part.count
        while count:
            taken = min(count, left[number])
            if taken:
                made[number].append(replace(part, count=taken))
            count, left[number] = count - taken, left[number] - taken
            number += left[number] == 0
    return made


def _make_buffers(stream: RequestStream, stage: Stage, chunks: list[_Chunk]) -> None:
    """Where inputs and gradients arrive, for every micro-batch."""
    stream.enter("forward")
    n_ends = stage.has(TABLE) + stage.has(HEAD)
    for _ in range((2 * len(chunks) - n_ends) * stage.microbatches):
        _make_buffer(stream, chunks)


def _make_buffer(stream: RequestStream, chunks: list[_Chunk]) -> int:
    shape = next(part.template.out for chunk in chunks for part in chunk.parts if part.name == "layer")
    place = "pipeline", "", "receive buffer"
    return stream.allocate(shape.unit, shape.count * ELEMENT_BYTES[shape.dtype], "saved_activations", place)


def _round(
    runtime: Runtime, chunks: list[_Chunk], phases: tuple[Phase, Phase, Phase], *, found: bool
) -> list[int]:
    """All micro-batches forward and back; ``found``: gradients of a round before are there.

    Gives the slots of those that it made.
    """
    stage = runtime.job.model.stage
    assert stage is not None
    state = _Round()
    for action in actions_of(shortened(stage)):
        chunk, key = chunks[action.chunk], (action.chunk, action.microbatch)
        first, last = action.chunk == 0 and stage.has(TABLE), chunk.parts[-1].name == _HEAD
        if action.forward:
            if not (runtime.receives_ahead or first):
                state.arrived[key] = _make_buffer(runtime.stream, chunks)
            parts = chunk.again if found or action.microbatch else chunk.parts
            made = _forward(runtime, parts, chunk.first_layer, phases)
            state.held[key] = made
            if runtime.receives_ahead or last:
                runtime.stream.events += _let_go(state, key)
            else:
                runtime.stream.events += _output(made)
        else:
            made = state.held.pop(key)
            came = [] if runtime.receives_ahead or last else [_make_buffer(runtime.stream, chunks)]
            _backward(runtime, made, phases)
            runtime.stream.free(*came, state.arrived.pop(key, None))
            state.gradients += gradients_of(made)
            runtime.stream.events += state.sent_back
            state.sent_back = _gradient_of_input(made)
            if state.last == key:
                state.output = _output(made)
            elif runtime.receives_ahead or last:
                runtime.stream.events += _output(made)
    runtime.stream.events += state.output + state.sent_back
    runtime.end_of_round()
    return state.gradients


def _let_go(state: _Round, key: tuple[int, int]) -> array[int]:
    """The variable refers to a new output; the one before goes, unless it waits for its backward pass."""
    gone, state.last, state.output = state.output, key, array("q")
    return gone


def _output(made: list[Instance]) -> array[int]:
    """What frees the output of a pass: what was sent, or the logits that the loss was made of."""
    if made[-1].name == _HEAD:
        return made[-1].events("backward_end")
    slot = made[-1].template.out_slot
    lies_at = None if slot is None else made[-1].slot(slot)
    return array("q", () if lies_at is None else (~lies_at,))


def _gradient_of_input(made: list[Instance]) -> array[int]:
    """What frees the gradient that is sent to the group before."""
    slot = made[0].template.gradient_slot
    lies_at = None if slot is None or made[0].name == "embeddings" else made[0].slot(slot)
    return array("q", () if lies_at is None else (~lies_at,))


def _forward(
    runtime: Runtime, parts: list[Part], first_layer: int, phases: tuple[Phase, Phase, Phase]
) -> list[Instance]:
    """One micro-batch through one chunk, and its loss where the head is there."""
    stream = runtime.stream
    stream.enter(phases[0])
    made = instances(stream, ((part.name, part.template, part.count) for part in parts), first_layer)
    body = made[:-1] if made[-1].name == _HEAD else made
    runtime.forward(body[0])
    for before, each in pairwise(body):
        runtime.forward(each)
        stream.events += before.events("forward_next")
    stream.events += body[-1].events("forward_next")
    if body is made:
        runtime.end_of_forward()
    else:
        stream.enter(phases[1])
        runtime.forward(made[-1])
    for each in made:
        stream.events += each.events("forward_end")
    stream.events += made[-1].events("forward_out") + made[-1].events("forward_loss")
    return made


def _backward(runtime: Runtime, made: list[Instance], phases: tuple[Phase, Phase, Phase]) -> None:
    """One micro-batch back through one chunk."""
    stream, body = runtime.stream, made
    stream.begin_engine()
    if made[-1].name == _HEAD:
        stream.enter(phases[1])
        runtime.backward(made[-1])
        body = made[:-1]
    stream.enter(phases[2])
    for each in reversed(body):
        runtime.backward(each)
    for each in made:
        stream.events += each.events("backward_out")
    runtime.end_of_backward(Pass(*phases, is_last=False))
    for each in body:
        stream.events += each.events("backward_end")
