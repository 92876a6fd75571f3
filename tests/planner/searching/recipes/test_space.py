"""What a search varies: choices that were given, and the settings that nobody gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.domain.origin import tool_default
from planner.errors import UsageError
from planner.intake.given.config_file import ConfigFile
from planner.intake.given.request import Given, ScenarioRequest
from planner.intake.resolve import look_up
from planner.searching.common_stacks import COMMON_STACKS
from planner.searching.recipes.space import (
    MICRO_BATCHES,
    OptionGroup,
    Space,
    options_over,
    read_choices,
    sizes,
)
from tests.jobs import typed

QLORA: dict[str, str | bool] = {"model": "7b", "method": "qlora", "gpu": "4090", "seq": "512"}
SETTLED: dict[str, str | bool] = typed(
    "--sharding none --offload none --gradient-checkpointing --attention sdpa --loss hf "
    "--optimizer adamw_torch"
)


def groups_of(flags: dict[str, str | bool]) -> list[OptionGroup]:
    """The options of the first place of these flags."""
    space = Space(*read_choices(flags))
    place = next(space.places())
    return list(options_over(space, place, look_up(space.outline(place))))


def test_commas_make_choices_of_flags_that_take_several() -> None:
    """What is given twice is one choice, but two cards may cost the same; one that is left is no choice."""
    fixed, choices = read_choices({"seq": "512, 1024,512", "gpu": "a,a", "price": "2,2", "model": "a,b"})
    assert choices == {"seq": ("512", "1024"), "price": ("2", "2")}
    assert fixed == {"gpu": "a", "model": "a,b"}
    assert read_choices({"stack": "any", "dora": False, "top": 3}) == (
        {"dora": False},
        {"stack": COMMON_STACKS},
    )
    with pytest.raises(UsageError, match="--seq has an empty choice between commas: '512,'"):
        read_choices({"seq": "512,"})


@pytest.mark.parametrize(
    ("model", "methods"), [("qwen3-8b", ["full", "lora", "qlora"]), ("Qwen/Qwen3-8B-FP8", ["full", "lora"])]
)
def test_no_method_is_tried_twice_over_a_packed_checkpoint(model: str, methods: list[str]) -> None:
    """Of which qlora changes nothing that lora does not."""
    groups = groups_of({**SETTLED, "model": model, "gpu": "h100-sxm", "seq": "512"})
    assert [group.first[0].flags["method"] for group in groups] == methods


def test_prices_go_with_their_cards() -> None:
    """Everything else outside the recipe is combined."""
    space = Space(*read_choices({"model": "m", "gpu": "a,b", "price": "1,2", "gpus": "4,8", "seq": "1,2"}))
    places = [(place["gpu"], place["price"], place["gpus"]) for place in space.places()]
    assert places == [("a", "1", "4"), ("a", "1", "8"), ("b", "2", "4"), ("b", "2", "8")]
    with pytest.raises(UsageError, match="3 prices for 2 choices of --gpu"):
        list(Space(*read_choices({"gpu": "a,b", "price": "1,2,3"})).places())
    with pytest.raises(UsageError, match="2 prices for 1 choice of"):
        list(Space(*read_choices({"gpu": "a", "price": "1,2"})).places())


def test_a_default_of_a_files_tool_is_given_by_nobody() -> None:
    """Where a search may vary it; what the file itself says is given, and so is any other default."""
    values = {
        "loss": Given("hf", tool_default("trl@1.16.0")),
        "seq": Given(1024, tool_default("trl@1.16.0")),
        "batch": Given(4, "a.yaml:batch"),
    }
    config = ConfigFile(Path(), "", request=ScenarioRequest(values))
    space = Space({"grad_accum": "2"}, {"gpus": ("8", "2")}, config)
    given = [name for name in ("loss", "seq", "batch", "grad_accum", "gpus", "nodes") if space.is_given(name)]
    assert given == ["seq", "batch", "grad_accum", "gpus"]
    assert [space.values_of(name) for name in ("gpus", "batch", "nodes")] == [(2, 8), (4,), ()]


def test_nothing_is_varied_where_all_is_given() -> None:
    """One option, without a change, that keeps the whole logits but no activations."""
    ((first, offloading),) = [(group.first, group.offloading) for group in groups_of(QLORA | SETTLED)]
    assert [(option.flags, option.n_changes) for option in first] == [(QLORA | SETTLED, 0)]
    assert offloading == ()


def test_what_nobody_gave_is_tried_from_the_stacks_own_on() -> None:
    """On one GPU an engine is only for what it offloads; 4-bit bytes then have the dtype of compute.
    Beside these three changes checkpointing and the loss may be others, too.
    """
    (group,) = groups_of(QLORA)
    assert group.first[0].n_changes == 0
    assert not any("sharding" in option.flags for option in group.first)
    moved = {
        (str(option.flags["sharding"]), option.flags["offload"], option.flags["quant_storage"])
        for option in group.offloading
    }
    assert moved == {("zero3", "optimizer+params", "bf16")}
    assert {option.n_changes for option in group.offloading} == {3, 4, 5}


def test_methods_are_groups_and_the_length_is_the_models_where_that_is_shorter() -> None:
    """GPT-2 was made for 1,024 tokens, Qwen 2.5 for more than the 2,048 that are assumed."""
    groups = groups_of({"model": "gpt2", "gpu": "4090", **SETTLED})
    assert [group.first[0].flags["method"] for group in groups] == ["full", "lora", "qlora"]
    assert {group.first[0].flags["seq"] for group in groups} == {"1024"}
    (longer,) = groups_of({"model": "qwen2.5-0.5b", "gpu": "4090", "method": "lora", **SETTLED})
    assert longer.first[0].flags["seq"] == "2048"


@pytest.mark.parametrize(("nodes", "wide"), [("1", set()), ("2", {"hsdp"})])
def test_several_gpus_share_their_states(nodes: str, wide: set[str]) -> None:
    """FSDP only there, and groups of nodes only where there are several; 8-bit states are not offloaded."""
    flags: dict[str, str | bool] = {"model": "1.5b", "gpu": "h100-sxm:2", "nodes": nodes, "method": "full"}
    (group,) = groups_of({**flags, "seq": "512"})
    every = (*group.first, *group.offloading)
    shardings = {str(option.flags["sharding"]) for option in every if "sharding" in option.flags}
    assert shardings == {"zero2", "zero3", "fsdp", *wide}
    assert {"adamw_8bit", "paged_adamw_8bit"} <= {option.flags.get("optimizer") for option in group.first}
    assert not any("optimizer" in option.flags for option in group.offloading)


@pytest.mark.parametrize(
    ("flags", "total", "gpus", "runs"),
    [
        ({}, None, 1, [[(each, None) for each in MICRO_BATCHES]]),
        ({"batch": "4,2", "grad_accum": "8,1"}, None, 1, [[(2, 1), (4, 1)], [(2, 8), (4, 8)]]),
        ({}, 24, 4, [[(1, 6), (2, 3), (3, 2), (6, 1)]]),
        ({"batch": "4"}, 24, 4, [[]]),
        ({"grad_accum": "2"}, 24, 4, [[(3, 2)]]),
        ({}, 24, 5, []),
        ({}, 2, 4, []),
        ({"tensor_parallel": "2"}, 4, 8, [[(1, 1)]]),
        ({"tensor_parallel": "2", "context_parallel": "2"}, 4, 8, [[(1, 2), (2, 1)]]),
    ],
)
def test_sizes_keep_the_global_batch(
    flags: dict[str, str | bool], total: int | None, gpus: int, runs: list[Any]
) -> None:
    """Micro-batch times accumulation times GPUs is it; GPUs that share a batch count as one."""
    found = sizes(Space(*read_choices(flags), global_batch=total), gpus)
    wanted = [
        [
            {"batch": str(batch)} | ({} if accum is None else {"grad_accum": str(accum)})
            for batch, accum in run
        ]
        for run in runs
    ]
    assert [list(run) for run in found] == wanted
