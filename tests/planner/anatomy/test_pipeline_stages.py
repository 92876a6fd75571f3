"""Layers over groups of GPUs: how they are cut, what is resolved, and what gets no verdict."""

from __future__ import annotations

from typing import Any

import pytest

from planner.anatomy.pipeline_stages import stages_of
from planner.domain.recipes.parallel import Parallel
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError, UsageError
from planner.program.job import job_of
from tests.planner.pipelines import scenario_of


def test_the_ends_count_as_layers() -> None:
    """torchtitan: 32 layers and two ends over four groups are 8 or 9 each, the first ones having one more."""
    assert Parallel(pipeline=4).layers_of_stages(32) == (8, 9, 8, 7)
    assert Parallel(pipeline=4, schedule="interleaved").layers_of_stages(126) == (15, *(16,) * 6, 15)
    assert Parallel(pipeline=2).layers_of_stages(4) == (2, 2)


def test_groups_have_the_model_between_them() -> None:
    """Every parameter is in one group; the first has the table, the last one norm and head."""
    scenario = scenario_of(pipeline_schedule="interleaved")
    stages = stages_of(scenario)
    assert [each.model.stage and each.model.stage.chunks for each in stages] == [
        (4, 4),
        (5, 4),
        (4, 4),
        (4, 3),
    ]
    assert sum(job_of(each, Coefficients()).base_params for each in stages) == scenario.model.param_count
    names = [{each.weight.name for each in job_of(stage, Coefficients()).parameters} for stage in stages]
    assert [("embed_tokens" in each, "head" in each) for each in names] == [
        (True, False),
        (False, False),
        (False, False),
        (False, True),
    ]


@pytest.mark.parametrize(
    ("flags", "shape"),
    [({}, (2, 1)), ({"nodes": 4}, (8, 1)), ({"nodes": 8}, (8, 2)), ({"gpu": "h100-sxm:4"}, (1, 1))],
)
def test_a_group_is_a_run_of_neighbours(flags: dict[str, object], shape: tuple[int, int]) -> None:
    """Part of a node, or whole nodes."""
    stage = stages_of(scenario_of(precision="fp32", **flags))[0]
    assert (stage.hardware.gpus_per_node, stage.hardware.nodes) == shape


def test_what_follows_from_the_degree() -> None:
    """torchtitan with FSDP2 that leaves weights whole, and all micro-batches of a step in one round."""
    recipe = scenario_of().recipe
    assert (recipe.sharding.name, recipe.loss) == ("fsdp-grad-op", "hf")
    assert recipe.parallel == Parallel(pipeline=4, microbatches=8)
    alone = scenario_of(gpu="h100-sxm:4", precision="fp32").recipe
    assert alone.sharding.name == "none"
    assert scenario_of().batches_at_once == 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"grad_accum": 2}, "as many micro-batches as groups"),
        ({"grad_accum": 9, "pipeline_schedule": "interleaved"}, "a multiple of 4"),
        ({"nodes": 8, "pipeline_parallel": 32, "grad_accum": 64}, "a group would have none"),
        ({"context_parallel": 2}, "divided sequences"),
        ({"sharding": "fsdp"}, "fsdp-grad-op is"),
        ({"loss": "chunked"}, "hf is"),
        ({"stack": "trl"}, "it is on torchtitan"),
        ({"method": "lora"}, "adapters"),
        ({"model": "qwen3-0.6b"}, "head is their token table"),
        ({"model": "mixtral-8x7b"}, "mixtral"),
        ({"gpu": "h100-sxm:4"}, "say --precision fp32"),
        ({"nodes": 3, "pipeline_parallel": 2, "model": "qwen3-8b"}, "neither whole nodes"),
        ({"samples": 100, "eval_samples": 10}, "evaluation"),
    ],
)
def test_what_nobody_read_has_no_verdict(flags: dict[str, object], words: str) -> None:
    """The reason says what is in the way."""
    with pytest.raises(NotModelledError, match=words):
        scenario_of(**flags)


def test_rounds_divide_a_step() -> None:
    """As many micro-batches as a step has, or a part of them."""
    with pytest.raises(UsageError, match="rounds of 3"):
        scenario_of(pipeline_microbatches=3)


def test_a_search_leaves_pipelines_out() -> None:
    """What works over grids gets a sentence."""
    with pytest.raises(NotModelledError, match="plan and check do"):
        job_of(scenario_of(), Coefficients())


@pytest.mark.parametrize("flags", [{"pipeline_schedule": "gpipe"}, {"pipeline_microbatches": 4}])
def test_what_only_a_pipeline_reads_is_never_ignored(flags: dict[str, Any]) -> None:
    """Without groups there is nothing that it could mean."""
    with pytest.raises(UsageError, match="is for pipelines"):
        scenario_of(pipeline_parallel=None, **flags)
