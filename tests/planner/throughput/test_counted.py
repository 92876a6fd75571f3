"""Work of a micro-step, read of its program once for all sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import Batch
from planner.program.ops.tensors import Unit
from planner.program.ops.work import FusedAttention, Product
from planner.searching.variants import with_sizes
from planner.throughput.counted import Cost, Counted, by_structure, scored_share, unit_values
from planner.throughput.tokens import MicroStep
from tests.jobs import typed
from tests.planner.intake.jobs import scenario_of
from tests.planner.throughput.jobs import BLOCK_WEIGHTS, HEAD_WEIGHTS, job, recipe, scenario

SMALL = {"model": "gemma-3-1b", "method": "full", "gpu": "a100-80-sxm", "attention": "sdpa"}


def products(counted: Counted) -> dict[str, float]:
    """Multiplications for each token, by where they are."""
    sums: dict[str, float] = {}
    for cost in counted.costs:
        if isinstance(cost.kind, Product) and cost.unit == Unit.TOKENS and cost.direction == "forward":
            sums[cost.place] = sums.get(cost.place, 0.0) + cost.amount
    return sums


def test_a_token_meets_every_weight_once_in_a_forward_pass(llama: ModelSpec) -> None:
    """Of layers and of the head, whatever batch and length are."""
    for batch in (Batch(1, 1, 64, "packed", 64), Batch(7, 3, 4096, "packed", 4096)):
        held = job(scenario(llama, recipe(batch=batch)))
        found = by_structure(held.scenario, held.micro, "evaluation", products)
        assert found == {"model": pytest.approx(BLOCK_WEIGHTS), "head": pytest.approx(HEAD_WEIGHTS)}


def test_modules_are_counted_once_for_each_layer(llama: ModelSpec) -> None:
    """A layer more has as many modules as each of the others."""
    counts = []
    for layers in (32, 33, 35):
        model = replace(llama, groups=(replace(llama.groups[0], count=layers),))
        held = job(scenario(model, recipe()))
        counts.append(
            by_structure(held.scenario, held.micro, "training", lambda one: {"n": one.modules})["n"]
        )
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])
    assert counts[1] > counts[0]


def test_cards_without_flash_have_operators_of_their_own() -> None:
    """Asked one after the other, whichever comes first: a T4 runs torch's memory-efficient kernel."""

    def kernels(gpu: str) -> dict[str, float]:
        flags = {**SMALL, "model": "llama-2-7b", "precision": "fp16-mixed"}
        held = scenario_of(**{**flags, "gpu": gpu})
        return by_structure(held, micro(128), "training", fused)

    def fused(counted: Counted) -> dict[str, float]:
        kinds = [each.kind for each in counted.costs if isinstance(each.kind, FusedAttention)]
        return {each.kernel: 1.0 for each in kinds}

    found = [kernels(gpu) for gpu in ("t4", "a100-80-sxm", "t4")]
    assert found == [{"efficient": 1.0}, {"flash": 1.0}, {"efficient": 1.0}]


def micro(length: object, *, masked: object = False, spread: float = 0.0) -> MicroStep:
    """A micro-step of two samples of this length."""
    return MicroStep(2 * length, 2 * length, length, masked, spread)  # type: ignore[operator]


def test_each_point_of_a_grid_has_the_costs_of_its_own_structure() -> None:
    """Within a window of 512 tokens and beyond it; with a mask and without one."""
    asked = scenario_of(**SMALL, batch=2, seq=4096)
    lengths, masks = np.array([256.0, 512.0, 4096.0]), np.array([[False], [True]])
    kinds = lambda one: {  # noqa: E731
        "kinds": float(len({each.kind for each in one.costs if isinstance(each.kind, FusedAttention)})),
        "costs": float(len(one.costs)),
    }
    grid = by_structure(asked, micro(lengths, masked=masks), "training", kinds)
    for row, column in np.ndindex(2, 3):
        point = micro(float(lengths[column]), masked=bool(masks[row, 0]))
        one = by_structure(asked, point, "training", kinds)
        for name, value in one.items():
            assert np.broadcast_to(grid[name], (2, 3))[row, column] == value
    assert grid["kinds"][0, 0] < grid["kinds"][0, 2]


def test_a_name_is_zero_where_its_work_does_not_occur() -> None:
    """Beyond the window there are more kinds of work: the name of fewer is gone, that of many is new."""
    asked = scenario_of(**SMALL, batch=2, seq=4096)
    few, many = (
        by_structure(asked, micro(length), "training", lambda one: {"n": float(len(one.costs))})["n"]
        for length in (64.0, 4096.0)
    )
    assert few < many
    found = by_structure(
        asked,
        micro(np.array([64.0, 4096.0])),
        "training",
        lambda one: {"both": 1.0} | ({"few": 3.0} if len(one.costs) == few else {"many": 4.0}),
    )
    held = [list(np.broadcast_to(found[name], 2)) for name in ("both", "few", "many")]
    assert held == [[1, 1], [3, 0], [0, 4]]


def test_pairs_of_tokens_grow_with_the_square_of_a_length_that_varies() -> None:
    """A spread of a half adds a quarter."""
    asked = scenario_of(**SMALL, batch=2, seq=4096)
    even, uneven = (unit_values(asked, micro(100.0, spread=spread)) for spread in (0.0, 0.5))
    assert (even[Unit.TOKENS], even[Unit.PAIRS]) == (200, 200 * 100)
    assert uneven[Unit.PAIRS] == pytest.approx(1.25 * 200 * 100)
    assert uneven[Unit.TOKENS] == 200


SAID: dict[str, Any] = typed("--model qwen2.5-0.5b --method lora --gpu a100-80-sxm --seq 1024 --batch 8")
GENERATES: dict[str, Any] = {"task": "grpo", "stack": "trl", "completion_length": 256}


def test_logits_are_made_of_completions_where_these_were_generated() -> None:
    """256 of 1,024 tokens; of all where nothing is generated, and in PPO."""
    grpo = scenario_of(**SAID, **GENERATES)
    assert scored_share(grpo.recipe) == pytest.approx(256 / 1024)
    assert unit_values(grpo, micro(1024.0))[Unit.COMPLETION_TOKENS] == pytest.approx(2 * 256)
    assert scored_share(scenario_of(**SAID).recipe) == 1.0
    assert scored_share(replace(grpo.recipe, task="ppo")) == 1.0


def test_one_more_token_reads_what_was_cached_and_a_prompt_does_not() -> None:
    """Its attention is over keys of all tokens before it."""
    grpo = scenario_of(**SAID, **GENERATES)
    cached = [
        by_structure(
            grpo,
            micro(1024.0),
            passes,
            lambda one: {"cached": sum(each.amount for each in one.costs if each.unit == Unit.CACHED_TOKENS)},
        )["cached"]
        for passes in ("prompts", "token")
    ]
    assert cached[0] == 0
    assert cached[1] > 0


def test_gradients_reach_a_tower_whose_attention_has_a_backward() -> None:
    """That of the language model does not count, nor does its forward."""
    kind = FusedAttention("flash", (64, 64), "square")
    backward = Cost("tower", "backward", "attention", kind, Unit.PATCH_PAIRS, 1.0)
    assert Counted((backward,), 0).reaches_tower
    for other in (
        replace(backward, place="model"),
        replace(backward, direction="forward"),
        replace(backward, kind="bytes"),
    ):
        assert not Counted((other,), 0).reaches_tower


def test_one_pair_has_the_costs_of_its_own_structure() -> None:
    """A joined pair is one row, which is cut without a copy, also beside larger batches in a grid."""
    flags = {"model": "qwen2-0.5b", "method": "lora", "stack": "llama-factory-v1", "task": "dpo", "seq": 256}

    def launches(batch: object) -> Any:
        asked = with_sizes(scenario_of(**flags), batch, 256, 256)  # type: ignore[arg-type]
        count = lambda one: {"n": sum(each.amount for each in one.costs if each.kind == "launches")}  # noqa: E731
        return by_structure(asked, micro(256), "training", count)["n"]

    assert launches(1) < launches(2) == launches(3)
    assert [*launches(np.array([1.0, 2.0]))] == [launches(1), launches(2)]
