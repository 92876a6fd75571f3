"""What is known of the common stacks: sharding that they run, and whether one was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.catalog.stacks import load_stack
from planner.domain.recipes.sharding import sharding_named
from planner.searching.common_stacks import COMMON_STACKS, offloads_activations, runs_sharding, stack_is_open
from tests.planner.intake.jobs import scenario_of


@pytest.mark.parametrize(
    ("stack", "runs"),
    [
        ("trl", ("none", "ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp1")),
        ("unsloth", ("none", "ddp", "fsdp")),
        ("torchtune", ("none", "ddp", "fsdp", "fsdp1")),
    ],
)
def test_a_stack_runs_the_engines_that_it_has(stack: str, runs: tuple[str, ...]) -> None:
    """Unsloth divides by FSDP2 alone, torchtune has no DeepSpeed."""
    every = ("none", "ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp1")
    assert tuple(name for name in every if runs_sharding(stack, sharding_named(name))) == runs


def test_variants_of_a_stack_offload_as_it_does() -> None:
    """An older TRL is one; the plain Trainer has no such switch, whatever it is called."""
    trl, trainer = load_stack("trl"), load_stack("hf-trainer@5")
    assert offloads_activations(trl)
    assert offloads_activations(replace(trl, id="trl@0", extends="trl"))
    assert not offloads_activations(trainer)
    assert not offloads_activations(replace(trl, id="trl", extends="hf-trainer@5"))


@pytest.mark.parametrize(
    ("said", "is_open"),
    [
        ({}, True),
        ({"stack": COMMON_STACKS[0]}, False),
        ({"versions": "peft==0.17.0"}, False),
        ({"switches": "fused_mlp=true"}, False),
        ({"attention": "sdpa"}, True),
    ],
)
def test_versions_and_switches_belong_to_a_stack(said: dict[str, str], is_open: bool) -> None:
    """Who gives one of them has said which stack he means."""
    assert stack_is_open(scenario_of(**said)) is is_open
