"""How the layers of a model are spread over GPUs, on sizes that can be counted by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from planner.anatomy.device_map import Share, shares_of
from planner.anatomy.pipeline_stages import stages_of
from planner.domain.recipes.recipe import PREPACKED
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError, UnreadCombinationError
from planner.memory.fullest_stage import fullest_job
from planner.memory.replayed_peak import predict_replayed
from tests.jobs import resolved

scenario_of = partial(
    resolved,
    (
        "--model tinyllama-1.1b --method lora --gpu 4090:2 --seq 512 --batch 1 --device-map auto "
        "--stack hf-trainer@5"
    ),
)
"""A job whose layers are spread."""


def test_the_first_gpu_has_the_table_and_the_last_one_the_head() -> None:
    """22 layers; both ends are as large as one and a half of them."""
    assert shares_of(scenario_of()) == (Share((0, 11), ("table",)), Share((11, 22), ("norm", "head")))


def test_a_head_that_is_tied_goes_where_the_table_is() -> None:
    """Both are one tensor."""
    first, last = shares_of(scenario_of(model="qwen2.5-0.5b")) or ()
    assert ("table" in first.ends, "head" in first.ends, "head" in last.ends) == (True, True, False)


def test_gpus_that_get_nothing_have_no_job() -> None:
    """A large table makes room for more than an even share."""
    stages = stages_of(scenario_of(model="llama-3.2-1b", gpu="4090:4"))
    assert [stage.model.stage and stage.model.stage.rank for stage in stages] == [0, 1, 2]


def test_every_layer_and_parameter_is_on_one_gpu() -> None:
    """Nothing is left out or counted twice."""
    whole = scenario_of(model="qwen2.5-7b", gpu="a100-80-sxm:4")
    stages = stages_of(whole)
    assert sum(stage.model.n_layers for stage in stages) == whole.model.n_layers
    assert sum(len(stage.model.stage.ends) for stage in stages if stage.model.stage) == 3


def test_versions_before_5_18_leave_room_for_a_layer_only() -> None:
    """With less room the last GPU has more."""
    new = scenario_of(model="qwen2.5-7b")
    old = scenario_of(model="qwen2.5-7b", versions="transformers==5.16.0")
    assert (shares_of(new) or ())[0].layers > (shares_of(old) or ())[0].layers


def test_weights_that_do_not_fit_end_in_a_sentence() -> None:
    """The library would leave them in host RAM."""
    scenario = scenario_of(model="llama-3.1-70b")
    assert shares_of(scenario) is None
    with pytest.raises(NotModelledError, match="too small for the weights"):
        stages_of(scenario)


def test_a_card_of_unknown_size_takes_everything() -> None:
    """Only even shares count then."""
    scenario = scenario_of(model="llama-3.1-70b")
    gpu = replace(scenario.hardware.gpu, visible_memory_bytes=None)
    assert shares_of(replace(scenario, hardware=replace(scenario.hardware, gpu=gpu))) is not None


@pytest.mark.parametrize("given", [{"eval_samples": 10}, {"eval_batch": 8}], ids=str)
def test_an_evaluation_is_refused_however_it_is_asked_for(given: dict[str, object]) -> None:
    """By its samples, or by how many there are at a time, as files of tools say it."""
    with pytest.raises(UnreadCombinationError, match="with evaluation"):
        scenario_of(**given)


@pytest.mark.parametrize("packed", sorted(PREPACKED))
def test_a_base_that_comes_packed_is_refused(packed: str) -> None:
    """Nobody compared where its layers go."""
    with pytest.raises(UnreadCombinationError, match=f"comes packed .{packed}.; int8"):
        scenario_of(quantization=packed)


@pytest.mark.parametrize("packs", ["int8", "nf4"])
def test_a_base_that_loading_packs_is_answered(packs: str) -> None:
    """With less that stays on the fullest GPU than in 16 bits."""
    packed, whole = (
        predict_replayed(fullest_job(scenario_of(model="llama-3.1-8b", quantization=each), Coefficients()))
        for each in (packs, "none")
    )
    assert float(packed.state_bytes) < 0.8 * float(whole.state_bytes)
