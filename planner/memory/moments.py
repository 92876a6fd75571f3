"""Where the backward pass of a micro-step has its peak: activations shrink while weight gradients grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from planner.arrays import maximum, where
from planner.domain.recipe import Number
from planner.domain.term import Phase
from planner.memory.activations import Activations
from planner.memory.head import head_gradient_bytes
from planner.memory.optimizer import carried_gradient_bytes, gradient_bytes, offload_norm_bytes, standing_gradient_bytes
from planner.program.job import Job


@dataclass(frozen=True, slots=True)
class BackwardMoment:
    """Bytes alive at one moment of the backward: saved activations, one layer at work, finished gradients, the tied table's."""

    kept: Number
    extra: Number
    gradients: Number
    table: Number = 0

    @property
    def total(self) -> Number:
        """All of it."""
        return self.activations + self.gradients + self.table

    @property
    def activations(self) -> Number:
        """What is as small as activations, and so can lie in blocks as small as weights."""
        return self.kept + self.extra


def first_backward(job: Job, amounts: Activations) -> BackwardMoment:
    """The peak of a backward that starts without gradients.  Source: :func:`first_moments`, the largest of them."""
    return _largest(first_moments(job, amounts))


def first_moments(job: Job, amounts: Activations) -> tuple[BackwardMoment, ...]:
    """The moments of a backward that starts without gradients, of which one is its peak.

    Between two layers one layer's activations go and one layer's gradients come, so the peak is where a run of equal layers
    begins or ends.  At the first layer the gradients of the token table are still missing: they come last of all, when no
    activations are left.  Engines that divide gradients are taken to hold their shares of all of them at the end.
    Source: torch 2.13 autograd/engine.cpp: nodes run in the reverse order of the forward.
    """
    if job.regime.engine != "native":
        gradients, norm = gradient_bytes(job), offload_norm_bytes(job)
        table = table_gradient_bytes(job) if job.model.tied else 0
        return (
            BackwardMoment(amounts.kept, amounts.backward_extra, standing_gradient_bytes(job)),
            BackwardMoment(amounts.shared + amounts.one_layer, amounts.backward_extra, gradients),
            # The head's gradient comes first of all, a tied table's last.
            BackwardMoment(0 if job.model.tied else amounts.kept, norm, 0),
            _table_moment(job, table),
        )
    return (*_layer_moments(job, amounts), _table_moment(job, tied_table_bytes(job)))


def later_backward(job: Job, amounts: Activations) -> BackwardMoment:
    """The peak of a backward that finds all gradients.  Source: :func:`later_moments`, the largest of them."""
    return _largest(later_moments(job, amounts))


def later_moments(job: Job, amounts: Activations) -> tuple[BackwardMoment, ...]:
    """The moments of a backward that finds all gradients: everything is kept, and each new gradient is added to the one there.

    Source: torch 2.13 autograd/functions/accumulate_grad.h (in place where a gradient exists).
    """
    # The head's part of a tied table waits for the table's own before both are added to what is there.
    table = table_gradient_bytes(job)
    start = BackwardMoment(amounts.kept, amounts.adding_extra, carried_gradient_bytes(job), table if job.model.tied else 0)
    added = table + tied_table_bytes(job)
    return (start, _table_moment(job, added))


def _layer_moments(job: Job, amounts: Activations) -> Iterator[BackwardMoment]:
    layers, kept = amounts.layers, amounts.shared
    later: Number = sum(layer.count * layer.gradients for layer in layers) + head_gradient_bytes(job)
    for layer in layers:
        later = later - layer.count * layer.gradients
        made = layer.growing_extra - layer.backward_extra
        last = later + (layer.count - 1) * layer.gradients
        yield BackwardMoment(kept + layer.kept, layer.backward_extra, last + made)
        kept = kept + layer.count * layer.kept
        yield BackwardMoment(kept, layer.backward_extra, later + made)


def _table_moment(job: Job, added: Number) -> BackwardMoment:
    """The last moment: all gradients, that of the first layer's input, and what is ``added`` to them.

    Where the sum of a tied table's parts is a third tensor, the gradient of the layer's input, which the table's own part was
    made of, has gone when it comes.
    Source: torch 2.13 autograd/engine.cpp: a node's inputs go when it has run, before its results are added to others.
    """
    boundary = job.tokens * job.model.hidden_size * job.regime.residual
    third = maximum(tied_table_bytes(job) - table_gradient_bytes(job), 0) if job.regime.engine == "native" else 0
    return BackwardMoment(0, maximum(boundary - third, 0), gradient_bytes(job), added)


def table_gradient_bytes(job: Job) -> int:
    """Dense gradient of the token table, made at the end of backward; 0 where it is frozen.

    Formula: vocabulary * hidden in the gradient's dtype.  Source: torch 2.13 derivatives.yaml, ``embedding`` (dense backward).
    """
    return job.model.token_embedding.param_count * job.regime.gradient if job.recipe.method == "full" else 0


def tied_table_bytes(job: Job) -> int:
    """Gradients of a trained table that is tied to the head, at the end of backward, beside the sum that stays.

    Counted: the table's own dense gradient, and the head's, because their sum is a third tensor: the head's gradient is a view
    (of a transposed product), which autograd does not add to in place.  Under autocast of fp32 weights it is a cast, and of a
    loss in pieces a sum: no third.
    Formula: vocabulary * hidden in the gradient's dtype, twice, or once.  Source: torch 2.13 derivatives.yaml, ``embedding``
    (dense backward), torch/csrc/autograd/input_buffer.cpp can_accumulate_inplace; seen in a real run on a CPU.
    """
    if not (job.model.tied and job.recipe.method == "full"):
        return 0
    added_in_place = (job.regime.autocast and job.regime.base > job.regime.compute) or job.recipe.loss != "hf"
    return job.model.token_embedding.param_count * job.regime.gradient * (1 if added_in_place else 2)


def idle_in_backward(job: Job, amounts: Activations, idle: Callable[[BackwardMoment], Number]) -> dict[Phase, Number]:
    """What blocks that are ``idle`` at a moment add to the peak of the first and of later backward passes.

    Formula: the most that is alive and idle at one moment, less the most that is alive.  The moment that reserves most is not
    always the one that allocates most: one with fewer tensors may leave more blocks idle.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp: segments stay reserved until the cache is emptied.
    """
    first = _beside(first_moments(job, amounts), idle)
    later = _beside(later_moments(job, amounts), idle)
    return {"backward": first, "backward_2": where(job.recipe.batch.grad_accum > 1, later, first)}


def _beside(moments: tuple[BackwardMoment, ...], idle: Callable[[BackwardMoment], Number]) -> Number:
    return maximum(*(each.total + idle(each) for each in moments)) - maximum(*(each.total for each in moments))


def _largest(moments: Iterable[BackwardMoment]) -> BackwardMoment:
    best, *others = moments
    for other in others:
        best = either(other.total > best.total, other, best)
    return best


def either(condition: Any, yes: BackwardMoment, no: BackwardMoment) -> BackwardMoment:
    """``yes`` where ``condition`` holds, else ``no``, elementwise."""
    if isinstance(condition, bool):
        return yes if condition else no
    return BackwardMoment(
        where(condition, yes.kept, no.kept),
        where(condition, yes.extra, no.extra),
        where(condition, yes.gradients, no.gradients),
        where(condition, yes.table, no.table),
    )
