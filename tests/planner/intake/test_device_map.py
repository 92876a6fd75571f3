"""``device_map``: what it goes with, and what it is refused beside."""

from __future__ import annotations

import pytest

from planner.domain.recipes.flat_recipe import flat_recipe
from planner.errors import UnreadCombinationError, UsageError
from planner.intake.given.request import Given, ScenarioRequest, from_flags, merge
from planner.intake.resolve import resolve
from tests.jobs import resolved, typed

JOB: dict[str, object] = typed(
    "--model llama-3.1-8b --method lora --gpu 4090:2 --seq 512 --batch 1 --device-map auto "
    "--stack hf-trainer@5"
)


def test_one_process_has_all_gpus() -> None:
    """So nothing is sharded, and the recipe says so in one word."""
    recipe = resolved(JOB).recipe
    assert (recipe.parallel.in_turn, recipe.parallel.gpus, recipe.sharding.name) == (True, 2, "none")
    assert flat_recipe(recipe)["device_map"] == "auto"


def test_balanced_is_the_same() -> None:
    """As in from_pretrained."""
    assert resolved({**JOB, "device_map": "balanced"}).recipe.parallel.in_turn


def test_on_one_gpu_it_means_nothing() -> None:
    """So no answer mentions it."""
    scenario = resolved({**JOB, "gpu": "4090"})
    assert not scenario.recipe.parallel.in_turn
    assert scenario.assumption("device_map") is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sharding": "zero3"}, "with sharding zero3"),
        ({"sharding": "fsdp"}, "with sharding fsdp"),
        ({"sharding": "ddp"}, "with sharding ddp"),
        ({"task": "dpo", "stack": "trl"}, "for task dpo"),
        ({"model": "qwen2.5-vl-7b"}, "for models that see"),
        ({"loss": "liger"}, "with loss liger"),
        ({"offload": "activations"}, "with offload activations"),
        ({"modules_to_save": "lm_head"}, "with modules_to_save"),
        ({"eval_samples": 10}, "with evaluation"),
        ({"eval_batch": 1}, "with evaluation"),
        ({"stack": "hf-trainer@4"}, "on stack 'hf-trainer@4'"),
        ({"method": "full", "train_layers": "last:4"}, "where parts of the model are trained"),
        ({"nodes": 2}, "the GPUs of one node"),
    ],
)
def test_what_was_not_compared_is_refused(given: dict[str, object], why: str) -> None:
    """In one sentence."""
    with pytest.raises(UnreadCombinationError, match=why):
        resolved({**JOB, **given})


def test_a_model_is_not_divided_twice() -> None:
    """One process has no other ranks."""
    with pytest.raises(UsageError, match="cannot be divided otherwise"):
        resolved({**JOB, "pipeline_parallel": 2})


def test_who_did_not_type_it_hears_where_it_comes_from() -> None:
    """A file of one process says it, and more processes are the way out."""
    said = ScenarioRequest({"device_map": Given("auto", "run.sh:3")})
    with pytest.raises(UsageError, match=r"run\.sh:3: .* start a process for each GPU"):
        resolve(merge(from_flags({**JOB, "tensor_parallel": 2}), said))


@pytest.mark.parametrize("given", [{"pipeline_schedule": "gpipe"}, {"pipeline_microbatches": 2}], ids=str)
def test_words_about_a_pipeline_are_not_dropped(given: dict[str, object]) -> None:
    """One process has no micro-batches that run through it."""
    with pytest.raises(UsageError, match="is for pipelines"):
        resolved({**JOB, **given})
