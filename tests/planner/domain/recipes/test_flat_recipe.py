"""A recipe as a flat table, and back."""

from dataclasses import fields, is_dataclass

import pytest

from planner.domain.recipes.flat_recipe import flat_recipe, with_flat
from planner.domain.recipes.recipe import Recipe
from planner.domain.recipes.sharding import Sharding
from planner.domain.run_record import RunRecord
from planner.intake.given.fields import FIELD_OF_COLUMN
from tests.jobs import resolved, typed

JOB = {"model": "7b", "gpu": "a100-80gb:8", "seq": "1024"}
OTHER = typed(
    "--task orpo --method qlora --batch 4 --grad-accum 2 --seq 512 --padding longest "
    "--tokens-per-sample 100 --lora-rank 64 --lora-targets attention --lora-dropout 0.1 "
    "--modules-to-save lm_head --adapter-dtype bf16 --optimizer sgd --sharding fsdp --quant-storage bf16 "
    "--gradient-checkpointing --checkpoint-every 2 --attention eager --loss liger --precision bf16"
)


def recipe_of(**flags: object) -> Recipe:
    """A resolved recipe, also of settings that exclude each other."""
    return resolved(JOB | flags, force=True).recipe


def leaves(value: object) -> int:
    """Fields of a recipe and of its parts that have columns in records; a sharding is one.

    The task says what is a pair, the model how it is packed, the stack whether it caches a reference or
    compares logits; what a second model is, what was read of data and what is said of images has no column.
    Parts of a sequence are those of the context-parallel degree.  A pipeline is in the table of a recipe
    that has one, and so are GPUs that divide experts; which layers its groups have, and in
    how many runs, Megatron says.
    """
    if not is_dataclass(value) or isinstance(value, Sharding):
        return 1
    without_column = {"is_paired", "packing", "caches_reference", "compares_logits"}
    without_column |= {"pipeline", "schedule", "microbatches", "experts", "expert_tensor", "runs", "layers"}
    without_column |= {"lengths", "images", "frozen", "parts", "rollout", "teacher"}
    return sum(
        leaves(getattr(value, field.name)) for field in fields(value) if field.name not in without_column
    )


def test_the_table_holds_every_field_of_a_recipe() -> None:
    """A new field has a flat name, which is one of a record and of a field of the intake."""
    recipe = recipe_of(**OTHER)
    flat = flat_recipe(recipe)
    assert len(flat) == leaves(recipe)
    assert set(flat) <= set(FIELD_OF_COLUMN) & set(RunRecord.__slots__)


def test_a_recipe_comes_back_from_its_table() -> None:
    """The table of one recipe put over another one of its method is that recipe."""
    first, other = recipe_of(method="lora"), recipe_of(**OTHER)
    assert first != other
    assert with_flat(first, flat_recipe(other)) == other


@pytest.mark.parametrize("name", ["lora_rank", "batch"])
def test_a_name_that_a_recipe_does_not_have_is_refused(name: str) -> None:
    """A full fine-tune has no adapter, and flat names are not those of flags."""
    with pytest.raises(KeyError):
        with_flat(recipe_of(method="full"), {name: 8})


def test_a_pipeline_comes_back_from_its_table() -> None:
    """Its degree, schedule and micro-batches, which other recipes do not show."""
    flags = {"method": "full", "model": "llama-3.1-8b", "pipeline_parallel": "2", "grad_accum": "4"}
    piped = recipe_of(**flags, pipeline_schedule="interleaved")
    plain = recipe_of(method="full", model="llama-3.1-8b", stack="torchtitan")
    assert set(flat_recipe(piped)) - set(flat_recipe(plain)) == {
        "pipeline_parallel",
        "pipeline_schedule",
        "pipeline_microbatches",
    }
    assert with_flat(plain, flat_recipe(piped)) == piped
