"""The groups of phases that terms live in, and how a term is made."""

from __future__ import annotations

from planner.arrays import is_zero
from planner.domain.recipe import Number
from planner.domain.term import PHASES, Phase, Term, TermKind, TermName

ALL_PHASES: frozenset[Phase] = frozenset(PHASES)
TRAINING: frozenset[Phase] = ALL_PHASES - {"load"}
STEPS: frozenset[Phase] = frozenset({"forward", "loss", "backward", "optimizer_step", "forward_2", "loss_2", "backward_2"})
AFTER_BACKWARD: frozenset[Phase] = frozenset({"optimizer_step"})
AFTER_STEP: frozenset[Phase] = frozenset({"forward_2", "loss_2", "backward_2", "optimizer_step", "eval", "save"})
LATER: frozenset[Phase] = frozenset({"forward_2", "loss_2", "backward_2", "eval", "save"})
FORWARD: frozenset[Phase] = frozenset({"forward", "forward_2"})
LOSS: frozenset[Phase] = frozenset({"loss", "loss_2"})
BACKWARD: frozenset[Phase] = frozenset({"backward", "backward_2"})
PASSES: frozenset[Phase] = FORWARD | LOSS | BACKWARD


def make_term(
    name: TermName, label: str, n_bytes: Number, phases: frozenset[Phase], formula: str, kind: TermKind
) -> tuple[Term, ...]:
    """The term, whose ``formula`` is ``module:function`` inside this package, or nothing where a job does not have it."""
    if is_zero(n_bytes):
        return ()
    return (Term(name, label, n_bytes, kind, phases, f"planner.memory.{formula}"),)


def kind_of(shards: Number) -> TermKind:
    """``replicated`` where there is one shard, else ``sharded``."""
    return "replicated" if isinstance(shards, int) and shards == 1 else "sharded"
