"""The table of optimizers: complete, and in the Trainer's words."""

from __future__ import annotations

from planner.configs.shared import trainer_arguments
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS, OPTIMIZERS
from tests.extras import import_or_skip


def test_every_optimizer_has_facts() -> None:
    """A name without them would end in an internal error."""
    assert set(OPTIMIZERS) == set(OPTIMIZER_FACTS)


def test_a_name_of_the_trainer_is_that_of_one_optimizer_and_exists() -> None:
    """Config files and real runs use the same names, which Transformers takes; one it took up to 4.49."""
    transformers = import_or_skip("transformers")
    names = [name for facts in OPTIMIZER_FACTS.values() for name in facts.trainer_names]
    assert sorted(names) == sorted(trainer_arguments.OPTIMIZERS)
    assert set(names) - {each.value for each in transformers.training_args.OptimizerNames} == {"adamw_hf"}


def test_an_optimizer_that_only_tools_make_has_no_name_in_the_trainer() -> None:
    """`optim` says nothing where a tool's own key chose one."""
    tools = {name for name, facts in OPTIMIZER_FACTS.items() if facts.library == "tool"}
    assert tools <= set(trainer_arguments.OWN_OPTIMIZERS)


def test_optimizers_of_bitsandbytes_are_issued_tensor_by_tensor() -> None:
    """All of them go through one loop over parameters (bitsandbytes 0.50 optim/optimizer.py step)."""
    issued = {facts.operators for facts in OPTIMIZER_FACTS.values() if facts.library == "bitsandbytes"}
    assert len(issued) == 1
