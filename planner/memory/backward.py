"""What the backward pass holds of gradients, saved activations and copies, which change places while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from planner.arrays import maximum, where
from planner.domain.recipe import Number
from planner.domain.term import Phase, Term, TermName
from planner.memory import optimizer, weights
from planner.memory.activations import Activations
from planner.memory.job import Job
from planner.memory.phases import AFTER_BACKWARD, kind_of, make_term

_FIRST: frozenset[Phase] = frozenset({"backward"})
_LATER: frozenset[Phase] = frozenset({"backward_2"})
_LATER_PASSES: frozenset[Phase] = frozenset({"forward_2", "loss_2"})


@dataclass(frozen=True, slots=True)
class _Backward:
    """Bytes at the peak of a backward pass."""

    kept: Number
    gradients: Number
    copies: Number
    tied: Number


def backward_terms(job: Job, amounts: Activations) -> tuple[Term, ...]:
    """Gradients, what is still saved, and copies, in the passes.

    In a micro-step that starts without gradients, activations shrink while gradients grow, so its peak is at one end of backward.
    With accumulation, micro-steps after the first start with all gradients.
    """
    gradients = optimizer.gradient_bytes(job)
    accumulates = job.recipe.batch.grad_accum > 1
    first, later = _first(job, amounts, gradients), _accumulated(job, amounts, gradients)

    def at(label: str, one: Number, other: Number, name: TermName, formula: str) -> tuple[Term, Term]:
        again = where(accumulates, other, one)
        return (
            make_term(name, f"{label}, first backward", one, _FIRST, formula, "transient"),
            make_term(name, f"{label}, later backward", again, _LATER, formula, "transient"),
        )

    formula, kind = "optimizer:gradient_bytes", kind_of(job.gradient_shards)
    carried, again = where(accumulates, later.gradients, first.gradients), where(accumulates, gradients, 0)
    in_step = optimizer.step_gradient_bytes(job)
    step_kind = kind_of(job.optimizer_shards) if job.recipe.sharding == "zero1" else kind
    return (
        *at("autocast copies", first.copies, later.copies, "autocast_copies", "weights:autocast_copy_bytes"),
        *at("saved", first.kept, later.kept, "saved_activations", "activations:activations"),
        make_term("gradients", "gradients", in_step, AFTER_BACKWARD, "optimizer:step_gradient_bytes", step_kind),
        make_term("gradients", "gradients, first backward", first.gradients, _FIRST, formula, "transient"),
        make_term("gradients", "gradients, later backward", carried, _LATER, formula, kind),
        make_term("gradients", "accumulated gradients", again, _LATER_PASSES, formula, kind),
        *at("tied table", first.tied, later.tied, "gradients", "backward:tied_table_bytes"),
    )


def _first(job: Job, amounts: Activations, gradients: Number) -> _Backward:
    """A backward pass that finds no gradients."""
    copies = _copies(job)
    at_start = amounts.kept + copies >= amounts.one_block + gradients
    # At the end of backward the last block is done, so only what exceeds it adds to the peak.
    tied = maximum(tied_table_bytes(job) - amounts.one_block - amounts.backward_extra, 0)
    return _Backward(
        kept=where(at_start, amounts.kept, amounts.one_block),
        gradients=where(at_start, 0, gradients),
        copies=where(at_start, copies, 0),
        tied=where(at_start, 0, tied),
    )


def _accumulated(job: Job, amounts: Activations, gradients: Number) -> _Backward:
    """A backward pass that finds all gradients, and has the head's part of a tied table beside them from its start."""
    tied = tied_table_bytes(job)
    table = job.model.token_embedding.param_count * job.regime.gradient if tied else 0
    at_end = maximum(tied + table - amounts.kept - amounts.backward_extra, table)
    return _Backward(amounts.kept, gradients, _copies(job), at_end)


def _copies(job: Job) -> Number:
    """Autocast's copies of weights that the graph holds until each layer has run backward: without checkpointing."""
    return 0 if job.recipe.gradient_checkpointing else weights.autocast_copy_bytes(job)


def tied_table_bytes(job: Job) -> int:
    """Gradients of a trained table that is tied to the head, at the end of backward, beside the sum that stays.

    Counted: the table's own dense gradient, and the head's, because their sum is a third tensor: the head's gradient is a view
    (of a transposed product), which autograd does not add to in place.  Under autocast of fp32 weights it is a cast: no third.
    Formula: vocabulary * hidden in the gradient's dtype, twice, or once.  Source: torch 2.13 derivatives.yaml, ``embedding``
    (dense backward), torch/csrc/autograd/input_buffer.cpp can_accumulate_inplace; seen in a real run on a CPU.
    """
    if not (job.model.tied and job.recipe.method == "full"):
        return 0
    added_in_place = job.regime.autocast and job.regime.base > job.regime.compute
    return job.model.token_embedding.param_count * job.regime.gradient * (1 if added_in_place else 2)
