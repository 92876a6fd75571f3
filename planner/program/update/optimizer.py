"""The optimizer's step: clipping, states, temporaries, and the end of the gradients.

Source: transformers 5.23 trainer.py (``get_decay_parameter_names``: two groups of parameters);
torch 2.13 ``torch/optim``.
Ignored: one norm for each gradient while they are clipped (``clip_grad_norm_``), which scales them in place;
so do fp16's ``GradScaler.unscale_`` and weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.program.job import Job
from planner.program.ops.tensors import Unit
from planner.program.parameters import Weight
from planner.program.request_stream import RequestStream
from planner.program.update import projected
from planner.program.update.states import BLOCK, is_in_blocks, states_of, sums_of
from planner.program.update.step_kernels import Make, States, adam_mini, like, muon

Step = Callable[[Make, States, Sequence[Weight]], None]
"""One step over parameters, of which it makes the states before it needs them."""


def optimizer_step(stream: RequestStream, job: Job, trained: Sequence[Weight], *, first: bool) -> list[int]:
    """One step over ``trained``; gives the slots of the states that it made: all, in the ``first`` step.

    The Trainer makes two groups of parameters, and each is stepped after the other: matrices and tables, then
    biases and norms.  LLaMA-Factory makes some optimizers in the place of the Trainer's, without groups.
    """
    states: list[int] = []

    def made(weight: Weight) -> None:
        if first:
            states.extend(make_states(stream, job, weight))

    for step, group in steps_of(job, trained, first=first):
        step(partial(Temporary, stream), made, group)
    return states


def make_states(stream: RequestStream, job: Job, weight: Weight) -> list[int]:
    """The states of one parameter; paged ones are not the allocator's."""
    place = ("optimizer", weight.name, "state")
    return [
        stream.allocate(unit, unit_bytes, "optimizer_states", place)
        for unit, unit_bytes, paged in states_of(job, weight)
        if not paged
    ]


def steps_of(job: Job, trained: Sequence[Weight], *, first: bool) -> Iterator[tuple[Step, Sequence[Weight]]]:
    """The steps of an optimizer, and what each is over: two groups, or all."""
    optimizer = job.recipe.optimizer
    if OPTIMIZER_FACTS[optimizer].projects:
        yield partial(_projecting, job, first=first), trained
    elif optimizer == "muon":
        n_parts = int(job.recipe.shards(job.hardware)) if job.recipe.sharding.dtensors else 1
        yield partial(muon, n_parts=n_parts), trained
    elif optimizer == "adam_mini":
        yield adam_mini, trained
    else:
        facts = OPTIMIZER_FACTS[optimizer]
        alone = {"adafactor": _adafactor, "adamw_hf": _one_by_one}.get(optimizer)
        step = alone or partial(_torchao if facts.library == "torchao" else _together, job)
        for group in _groups(trained, apart=facts.ends_apart):
            yield step, group


def _projecting(job: Job, make: Make, states: States, trained: Sequence[Weight], *, first: bool) -> None:
    """APOLLO's and GaLore's."""
    optimizer, rank, head = job.recipe.optimizer, job.recipe.optimizer_rank or 0, job.stack.projects_head
    order = projected.in_order(trained, head=head)
    if optimizer == "galore_adamw_8bit":
        projected.galore_8bit(make, states, order, rank)
    elif optimizer == "galore_adafactor":
        _adafactor(make, states, [each for each, _ in order], rank, head=head)
    else:
        ways = projected.galore(rank) if optimizer == "galore_adamw" else projected.apollo(rank, first=first)
        projected.projected_adamw(make, states, order, *ways)


def _groups(trained: Sequence[Weight], *, apart: bool) -> Iterator[list[Weight]]:
    """What decays, then what does not; ``apart``: token table and head between them.

    Source: transformers 5.23 trainer.py create_optimizer; axolotl 0.19.0 core/trainers/mixins/optimizer.py
    create_optimizer_grouped_parameters.
    """
    ends = [apart and each.outside and each.decays for each in trained]
    yield [each for each, is_end in zip(trained, ends, strict=True) if each.decays and not is_end]
    yield [each for each, is_end in zip(trained, ends, strict=True) if is_end]
    yield [each for each in trained if not each.decays]


class Temporary:
    """Memory of the step, freed when the last variable that refers to it goes."""

    __slots__ = ("slot", "stream")

    def __init__(self, stream: RequestStream, unit: Unit, unit_bytes: float, name: str, op: str) -> None:
        self.stream = stream
        self.slot = stream.allocate(unit, unit_bytes, "optimizer_temporaries", ("optimizer", name, op))

    def __del__(self) -> None:
        self.stream.free(self.slot)


def _together(job: Job, make: Make, states: States, group: Sequence[Weight]) -> None:
    """All states, then kernels that update the whole group (``foreach``) or allocate nothing.

    Where GPUs have parts of a table as DTensors, the part of its gradient that belongs to this GPU's rows is
    copied; FSDP2 has done so before.
    Source: torch 2.13 distributed/tensor/_redistribute.py, from replicated to divided.
    """
    for each in group:
        states(each)
    as_read = job.model.parts > 1 and job.stack.model_parallel == "features"
    if as_read and job.recipe.method == "full" and not job.recipe.uses_fsdp:
        table = job.model.token_embedding.name
        _copies = [like(make, each, "clone") for each in group if each.name == table]
        del _copies
    lists, copies = OPTIMIZER_FACTS[job.recipe.optimizer].lists, job.stack.foreach_step_copies
    if lists and copies:
        _foreach(make, group, lists + copies - 1)
    elif lists:
        _in_turn(make, group)


def _foreach(make: Make, group: Sequence[Weight], n_lists: int) -> None:
    """By dtype: all roots of second moments at once, then what is divided by them; before torch 2.1 a copy
    more to add epsilon.

    The dtype that appears last comes first: ``std::unordered_map`` of libstdc++ adds at the front.
    Source: torch 2.13 and 2.0 optim/adam.py _multi_tensor_adam, rmsprop.py _multi_tensor_rmsprop,
    ATen/native/ForeachUtils.h; schedulefree 1.4.1 adamw_schedulefree.py; axolotl 0.19.0
    utils/optimizers/adopt.py _multi_tensor_adopt, adamc.py.
    Ignored: the first step of ADOPT takes no roots.
    """
    roots, others = [], []
    for dtype in reversed(dict.fromkeys(each.dtype for each in group)):
        same = [each for each in group if each.dtype == dtype]
        roots = [like(make, each, "_foreach_sqrt") for each in same]
        if n_lists > 1:
            others = [like(make, each, "_foreach_div") for each in same]
    del roots, others


def _in_turn(make: Make, group: Sequence[Weight]) -> None:
    """One parameter after the other (``foreach=False``): the root of its second moment and what is divided
    by, beside that of the parameter before, to which the loop's variable refers until then.

    Source: torch 2.0 and 2.13 optim/adam.py _single_tensor_adam, adamw.py _single_tensor_adamw.
    """
    divisor = None
    for each in group:
        root = like(make, each, "sqrt")
        divisor = like(make, each, "div")
        del root
    del divisor


def _one_by_one(make: Make, states: States, group: Sequence[Weight]) -> None:
    """One parameter after the other: the root of its second moment, beside the one before it, to which the
    loop's variable refers until then.

    Source: transformers 4.36.2, 4.44.2 and 4.49.0 optimization.py AdamW.step.
    """
    root = None
    for each in group:
        states(each)
        root = like(make, each, "sqrt")
    del root


def _torchao(job: Job, make: Make, states: States, group: Sequence[Weight]) -> None:
    """One parameter after the other, compiled: new moments in fp32 and their scales are buffers.

    In 4 bits the codes are, too, as int64 before two of them are packed into a byte.
    Source: torchao 0.17 optim/adam.py single_param_adam, quant_utils.py; buffers as torch 2.13's Inductor
    writes them for an H100 (``empty_strided_cuda`` in the generated ``call``).
    Ignored: copies while Triton chooses a kernel, in the first step; what other versions of torch fuse.
    """
    bits = OPTIMIZER_FACTS[job.recipe.optimizer].bits
    for each in group:
        states(each)
        if is_in_blocks(job, each):
            new = partial(_pair, make, each)
            scales, moments = new(4 / BLOCK, "amax"), new(4, "lerp")
            codes = new(8, "where") if bits == 4 else []
            del moments, codes, scales


def _pair(make: Make, weight: Weight, element_bytes: float, op: str) -> list[object]:
    return [make(weight.unit, element_bytes * weight.count, weight.name, op) for _ in range(2)]


def _adafactor(
    make: Make, states: States, group: Sequence[Weight], rank: int = 0, *, head: bool = False
) -> None:
    """One parameter after the other, in fp32; variables live until they are bound again.

    ``rank``: to which GaLore makes gradients narrow, those of the ``head``, too.
    Source: transformers 5.23 optimization.py Adafactor.step (without a first moment, as the Trainer asks);
    galore-torch 1.0 adafactor.py.
    """
    gradient = data = update = None
    for each in group:
        wide = narrow = replace(each, dtype="fp32")
        gradient = None  # ``grad = p.grad`` lets the fp32 copy of the gradient before go.
        gradient = like(make, wide, "float") if each.dtype != "fp32" else None
        projects = rank and projected.is_projected(each, head=head)
        if projects:
            narrow = projected.decomposed(make, wide, rank)
            gradient = like(make, narrow, "matmul")
        states(each)
        data = None
        data = like(make, wide, "float") if each.dtype != "fp32" else None
        square = like(make, narrow, "pow")
        update = like(make, narrow, "add")
        del square
        update = _approximated(make, narrow) if len(each.shape) > 1 else like(make, narrow, "rsqrt")
        if projects:
            update = projected.multiplied_back(make, wide)
        _negative = like(make, wide, "neg")
        del _negative
    del gradient, data, update


def _approximated(make: Make, weight: Weight) -> object:
    """``_approx_sq_grad``: means of rows and columns, and their product, beside the squares."""
    rows, columns = sums_of(weight)
    for size in (rows, columns):
        _mean = make(*size, weight.name, "mean")
        del _mean
    factors = [make(*rows, weight.name, "div"), make(*columns, weight.name, "rsqrt")]
    product = make(weight.unit, 4 * weight.count, weight.name, "mul")
    del factors
    return product
