"""The groups of phases that terms live in, and how a term is made."""

from __future__ import annotations

from planner.arrays import is_zero
from planner.domain.recipes.recipe import Number
from planner.domain.term import PHASES, Phase, Term, TermKind, TermName

ALL_PHASES: frozenset[Phase] = frozenset(PHASES)
AFTER_STEP: frozenset[Phase] = frozenset(
    {"optimizer_step", "generation_2", "forward_2", "loss_2", "backward_2", "eval", "save"}
)
PASSES: frozenset[Phase] = frozenset({"forward", "loss", "backward", "forward_2", "loss_2", "backward_2"})
STEPS: frozenset[Phase] = PASSES | {"optimizer_step"}


def make_term(
    name: TermName, label: str, n_bytes: Number, phases: frozenset[Phase], formula: str, kind: TermKind
) -> tuple[Term, ...]:
    """The term, whose ``formula`` is ``module:function`` inside this package,
    or nothing where a job does not have it.
    """
    if is_zero(n_bytes):
        return ()
    return (Term(name, label, n_bytes, kind, phases, f"planner.memory.{formula}"),)


def kind_of(shards: Number) -> TermKind:
    """``replicated`` where there is one shard, else ``sharded``."""
    return "replicated" if isinstance(shards, int) and shards == 1 else "sharded"
