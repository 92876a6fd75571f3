"""The optimizer's step: clipping, states, temporaries, and the end of the gradients.

Source: transformers 5.23 trainer.py (``get_decay_parameter_names``: two groups of parameters);
torch 2.13 ``torch/optim``.
Ignored: one norm for each gradient while they are clipped (``clip_grad_norm_``), which scales them in place;
so do fp16's ``GradScaler.unscale_`` and weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.program.job import Job
from planner.program.layers.projected import APOLLO, apollo
from planner.program.ops.tensors import Unit
from planner.program.parameters import Weight
from planner.program.stream import Stream
from planner.program.update.states import BLOCK, is_in_blocks, states_of, sums_of
from planner.program.update.step_kernels import Make, States, adam_mini, muon, muon_of_parts


def optimizer_step(stream: Stream, job: Job, trained: Sequence[Weight], *, first: bool) -> list[int]:
    """One step over ``trained``; gives the slots of the states that it made,
    which is all of them in the ``first`` step.

    The Trainer makes two groups of parameters, and each is stepped after the other: matrices and tables, then
    biases and norms.  ``foreach`` updates a group together; others one parameter after the other, whose
    states they make just before.
    """
    states: list[int] = []

    def made(weight: Weight) -> None:
        if first:
            states.extend(make_states(stream, job, weight))

    if job.recipe.optimizer_rank and job.recipe.optimizer in APOLLO:
        apollo(partial(_temporary, stream), made, trained, job.recipe.optimizer_rank, first=first)
        return states
    one_by_one = _one_by_one(job)
    if one_by_one is not None:
        one_by_one(partial(_temporary, stream), made, trained)
        return states
    by_group = {"adafactor": _adafactor, "adamw_torch_8bit": _torchao, "adamw_torch_4bit": _torchao}.get(
        job.recipe.optimizer
    )
    for decays in (True, False):
        group = [each for each in trained if each.decays == decays]
        if by_group is not None:
            states += by_group(stream, job, group, first=first)
            continue
        if first:
            for each in group:
                states += make_states(stream, job, each)
        _own_gradients(stream, job, group)
        if job.recipe.optimizer in ("adamw_torch", "rmsprop", "badam"):
            _foreach_roots(stream, job, group)
    return states


def make_states(stream: Stream, job: Job, weight: Weight) -> list[int]:
    """The states of one parameter; paged ones are not the allocator's."""
    return [
        stream.allocate(state.unit, state.unit_bytes, "optimizer_states", ("optimizer", weight.name, "state"))
        for state in states_of(job, weight)
        if not state.paged
    ]


def _one_by_one(job: Job) -> Callable[[Make, States, Sequence[Weight]], None] | None:
    """Optimizers without groups of parameters, which LLaMA-Factory makes in the place of the Trainer's."""
    optimizer = job.recipe.optimizer
    if optimizer == "muon" and job.recipe.sharding.dtensors:
        return partial(muon_of_parts, n_parts=int(job.recipe.shards(job.hardware)))
    return {"adam_mini": adam_mini, "muon": muon}.get(optimizer)


class Temporary:
    """Memory of the step, freed when the last variable that refers to it goes."""

    __slots__ = ("slot", "stream")

    def __init__(self, stream: Stream, unit: Unit, unit_bytes: float, place: tuple[str, str]) -> None:
        self.stream = stream
        self.slot = stream.allocate(unit, unit_bytes, "optimizer_temporaries", ("optimizer", *place))

    def __del__(self) -> None:
        self.stream.free(self.slot)


def _temporary(stream: Stream, unit: Unit, unit_bytes: float, name: str, op: str) -> Temporary:
    return Temporary(stream, unit, unit_bytes, (name, op))


def _own_gradients(stream: Stream, job: Job, group: Sequence[Weight]) -> None:
    """The part of a table's gradient that belongs to this GPU's rows,
    copied where GPUs have parts of the table as DTensors.

    Source: torch 2.13 distributed/tensor/_redistribute.py, from replicated to divided.
    """
    if job.model.parts > 1 and job.stack.model_parallel == "features" and job.recipe.method == "full":
        tables = [each for each in group if each.name == job.model.token_embedding.name]
        _copies = [Temporary(stream, each.unit, each.unit_bytes, (each.name, "clone")) for each in tables]


def _foreach_roots(stream: Stream, job: Job, group: Sequence[Weight]) -> None:
    """One dtype after the other: the root of every second moment at once;
    before torch 2.1 one more copy to add epsilon.

    The dtype that appears last comes first: the groups are in a ``std::unordered_map``,
    to which libstdc++ adds at the front.
    Source: torch 2.13 and 2.0 optim/adam.py _multi_tensor_adam, rmsprop.py _multi_tensor_rmsprop,
    ATen/native/ForeachUtils.h.
    """
    roots, sums = [], []
    for dtype in reversed(dict.fromkeys(each.dtype for each in group)):
        same = [each for each in group if each.dtype == dtype]
        roots = [Temporary(stream, each.unit, each.unit_bytes, (each.name, "_foreach_sqrt")) for each in same]
        if job.stack.foreach_step_copies > 1:
            sums = [
                Temporary(stream, each.unit, each.unit_bytes, (each.name, "_foreach_add")) for each in same
            ]
    del roots, sums


def _torchao(stream: Stream, job: Job, group: Sequence[Weight], *, first: bool) -> list[int]:
    """One parameter after the other, by a compiled step:
    new moments in fp32 and their scales are buffers between its kernels.

    In 4 bits the codes are, too, as int64 before two of them are packed into a byte.
    Source: torchao 0.17 optim/adam.py single_param_adam, quant_utils.py; buffers as torch 2.13's Inductor
    writes them for an H100 (``empty_strided_cuda`` in the generated ``call``), the same for matrices, tables
    and tensors of experts.
    Ignored: copies that Triton makes while it chooses a kernel, in the first step;
    what other versions of torch fuse.
    """
    states: list[int] = []
    for each in group:
        if first:
            states += make_states(stream, job, each)
        if not is_in_blocks(job, each):
            continue

        def new(element_bytes: float, op: str, weight: Weight = each) -> Temporary:
            return Temporary(stream, weight.unit, element_bytes * weight.count, (weight.name, op))

        scales = [new(4 / BLOCK, "amax") for _ in range(2)]
        moments = [new(4, "lerp") for _ in range(2)]
        codes = [new(8, "where") for _ in range(2)] if OPTIMIZER_FACTS[job.recipe.optimizer].bits == 4 else []
        del moments, codes, scales
    return states


def _adafactor(stream: Stream, job: Job, group: Sequence[Weight], *, first: bool) -> list[int]:
    """One parameter after the other, in fp32.
    Variables of the loop keep what they refer to until they are bound again.

    Source: transformers 5.23 optimization.py Adafactor.step (without a first moment,
    as the Trainer asks for it).
    """
    states: list[int] = []
    gradient = data = update = None
    for each in group:

        def new(op: str, weight: Weight = each) -> Temporary:
            return Temporary(stream, weight.unit, 4 * weight.count, (weight.name, op))

        gradient = None  # ``grad = p.grad`` lets the fp32 copy of the gradient before go.
        gradient = new("float") if each.dtype != "fp32" else None
        if first:
            states += make_states(stream, job, each)
        data = None
        data = new("float") if each.dtype != "fp32" else None
        square = new("pow")
        total = new("add")
        del square
        update = total
        del total
        update = _approximated(stream, each) if len(each.shape) > 1 else new("rsqrt")
        _negative = new("neg")
        del _negative
    del gradient, data, update
    return states


def _approximated(stream: Stream, weight: Weight) -> Temporary:
    """``_approx_sq_grad``: means of rows and columns, and their product;
    the caller keeps the squares until it returns.
    """

    def new(size: tuple[Unit, float], op: str) -> Temporary:
        return Temporary(stream, *size, (weight.name, op))

    rows, columns = sums_of(weight)
    for size in (rows, columns):
        _mean = new(size, "mean")
        del _mean
    factors = [new(rows, "div"), new(columns, "rsqrt")]
    product = new((weight.unit, 4 * weight.count), "mul")
    del factors
    return product
