"""The terms of the backward pass: activations, one layer at work, and gradients, which change places while it runs."""

from __future__ import annotations

from planner.arrays import where
from planner.domain.recipe import Number
from planner.domain.term import Phase, Term
from planner.memory import optimizer
from planner.memory.activations import Activations
from planner.memory.moments import BackwardMoment, either, first_backward, later_backward
from planner.memory.phases import AFTER_BACKWARD, FORWARD, LOSS, kind_of, make_term
from planner.program.job import Job

_FIRST: frozenset[Phase] = frozenset({"backward"})
_LATER: frozenset[Phase] = frozenset({"backward_2"})
_LATER_PASSES: frozenset[Phase] = frozenset({"forward_2", "loss_2"})


def backward_terms(job: Job, amounts: Activations) -> tuple[Term, ...]:
    """Activations and gradients at the peak of each backward; with accumulation, later micro-steps start with all gradients."""
    accumulates = job.recipe.batch.grad_accum > 1
    formula, kind = "optimizer:gradient_bytes", kind_of(job.gradient_shards)
    first, later = first_backward(job, amounts), later_backward(job, amounts)
    second = either(accumulates, later, first)
    in_step = optimizer.step_gradient_bytes(job)
    step_kind = kind_of(job.optimizer_shards) if job.recipe.sharding.is_zero1 else kind
    fresh = where(accumulates, 0, 1)
    carried: Number = where(accumulates, optimizer.carried_gradient_bytes(job), 0)
    standing = optimizer.standing_gradient_bytes(job)
    return (
        *_moment_terms(first, _FIRST, "first backward"),
        *_moment_terms(second, _LATER, "later backward"),
        *make_term("gradients", "gradients, first backward", first.gradients, _FIRST, formula, "transient"),
        *make_term("gradients", "gradients, later backward", fresh * second.gradients, _LATER, formula, "transient"),
        *make_term("gradients", "gradients, added to", (1 - fresh) * second.gradients, _LATER, formula, kind),
        *make_term("gradients", "gradients", in_step, AFTER_BACKWARD, "optimizer:step_gradient_bytes", step_kind),
        *make_term("gradients", "accumulated gradients", carried - where(accumulates, standing, 0), _LATER_PASSES, formula, kind),
        *make_term("gradients", "buffer for gradients", standing, FORWARD | LOSS, "optimizer:standing_gradient_bytes", kind),
    )


def _moment_terms(moment: BackwardMoment, phases: frozenset[Phase], when: str) -> tuple[Term, ...]:
    formula, table = "activations:activations", "moments:tied_table_bytes"
    # Both parts of a tied table's gradient are gradients, as the one of an untied head is, until their sum is there.
    return (
        *make_term("saved_activations", f"saved, {when}", moment.kept, phases, formula, "transient"),
        *make_term("block_recompute", f"one block, {when}", moment.extra, phases, formula, "transient"),
        *make_term("gradients", f"tied table, {when}", moment.table, phases, table, "transient"),
    )
