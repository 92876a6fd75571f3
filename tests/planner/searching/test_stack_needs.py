"""What common stacks need: as plan says of each, and what their bare defaults lack."""

from __future__ import annotations

import pytest

from planner.predicting import estimate
from planner.searching.common_stacks import COMMON_STACKS
from planner.searching.levers import levers
from planner.searching.stack_needs import stack_needs
from tests.planner.searching.jobs import Flags, scenario


def test_stacks_need_what_plan_says_of_them() -> None:
    """Where no stack was said each common one is answered as by its flag; where one was said none is."""
    job: Flags = {"model": "7b", "method": "qlora", "gpu": "4090", "seq": "2048"}
    found = stack_needs(scenario(job))
    assert [each.stack for each in found] == [name.partition("@")[0] for name in COMMON_STACKS]
    for each in found:
        said = scenario({**job, "stack": each.stack})
        answer = estimate(said)
        assert each.need_bytes == pytest.approx(float(answer.memory.must_have_bytes), abs=1)
        assert each.peak_bytes == pytest.approx(float(answer.memory.driver_peak_bytes), abs=1)
        assert each.verdict == answer.verdict
    assert stack_needs(scenario({**job, "stack": "trl"})) == ()


def test_a_stack_that_cannot_divide_weights_so_is_left_out() -> None:
    """Unsloth runs no ZeRO, so under ZeRO it is neither offered nor among the stacks."""
    sharded = scenario({"model": "7b", "method": "lora", "gpu": "4090:2", "seq": "2048", "sharding": "zero3"})
    assert "unsloth" not in {each.stack for each in stack_needs(sharded)}
    for lever in levers(sharded):
        assert lever.flags.get("stack") != "unsloth" or str(lever.flags.get("sharding")) == "fsdp"


def test_what_examples_set_and_defaults_lack_is_named_until_it_is_said() -> None:
    """Axolotl's examples checkpoint, pack and use FlashAttention; what is said is not lacking,
    nor what the card cannot run.
    """
    job: Flags = {"model": "7b", "method": "lora", "gpu": "4090", "seq": "2048"}

    def lacks(said: Flags) -> tuple[str, ...]:
        return next(each.lacks for each in stack_needs(scenario({**job, **said})) if each.stack == "axolotl")

    assert lacks({}) == ("checkpointing", "packing", "flash attention")
    assert lacks({"gradient_checkpointing": True, "padding": "packed"}) == ("flash attention",)
    assert lacks({"gradient_checkpointing": False}) == ("packing", "flash attention")
    assert "flash attention" not in lacks({"gpu": "t4"})
