"""What a stack's switches mean together: masks of packed samples, growing segments, DDP, defaults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.catalog.stacks import load_stack
from planner.domain.recipes.recipe import Recipe
from planner.domain.scenario import segments_grow
from planner.domain.stack import Stack
from tests.jobs import resolved

TRL = load_stack("trl")


def recipe(**flags: object) -> Recipe:
    """A recipe of few words."""
    base = {"model": "qwen2.5-0.5b", "method": "lora", "gpu": "4090", "seq": 512, "padding": "packed"}
    return resolved(base | {"attention": "sdpa"} | flags).recipe


def switched(**switches: object) -> Stack:
    """TRL's stack with some switches of one's own."""
    return replace(TRL, **switches)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("packed_mask", "sdpa_mask", "attention", "masks"),
    [
        ("collated", "stream", "sdpa", True),
        ("collated", "bool", "sdpa", False),
        ("rows", "bool", "sdpa", True),
        ("one_row", "bool", "eager", True),
        ("one_row", "bool", "flash2", False),
        ("rows", "stream", "sdpa", False),
        ("rows", "bool", "flash2", False),
        # A kernel in the place of sdpa is told; eager attention is not.
        ("varlen", "bool", "sdpa", False),
        ("varlen", "bool", "eager", True),
        ("none", "bool", "sdpa", False),
    ],
)
def test_who_keeps_packed_samples_apart_by_a_mask(
    packed_mask: str, sdpa_mask: str, attention: str, masks: bool
) -> None:
    """FlashAttention never; padded samples have none either.  Packed ones lie in one row in any case."""
    stack = switched(packed_mask=packed_mask, sdpa_mask=sdpa_mask)
    assert stack.masks_samples(recipe(attention=attention)) == masks
    assert not stack.masks_samples(recipe(attention=attention, padding="longest"))
    assert stack.joins_rows(recipe(attention=attention)) == (packed_mask == "one_row")
    assert not stack.joins_rows(recipe(attention=attention, padding="longest"))


@pytest.mark.parametrize(
    ("setting", "grows"),
    [
        ("off", [False, False, False]),
        ("on", [True, True, True]),
        ("several_gpus", [False, True, True]),
        ("torchrun", [False, True, True]),
        ("one_node", [True, True, False]),
    ],
)
def test_segments_grow_by_the_number_of_gpus_and_nodes(setting: str, grows: list[bool]) -> None:
    """On one GPU, on eight of a node, and on eight of two nodes."""
    stack = switched(expandable_segments=setting)
    assert [segments_grow(stack, *job) for job in ((1,), (8,), (8, 2))] == grows
    # DeepSpeed on one GPU.
    assert segments_grow(stack, 1, deepspeed=True) is (grows[0] or setting == "torchrun")


@pytest.mark.parametrize(
    ("setting", "full", "checkpointed", "adapters"),
    [
        ("always", True, True, True),
        ("never", False, False, False),
        ("unless_checkpointed", True, False, True),
        ("full_unless_checkpointed", True, False, False),
    ],
)
def test_when_ddp_looks_for_unused_parameters(
    setting: str, full: bool, checkpointed: bool, adapters: bool
) -> None:
    """A model inside of PEFT's is not asked whether it is checkpointed."""
    stack = switched(ddp_finds_unused=setting)
    assert stack.finds_unused(has_adapter=False, is_checkpointed=False) == full
    assert stack.finds_unused(has_adapter=False, is_checkpointed=True) == checkpointed
    for again in (False, True):
        assert stack.finds_unused(has_adapter=True, is_checkpointed=again) == adapters


def test_defaults_over_a_quantised_base_are_others_where_there_are_some() -> None:
    """Else the same; an unquantised base never has them."""
    other = replace(TRL.defaults, attention="eager")
    assert switched(quantized_defaults=None).defaults_over("nf4") is TRL.defaults
    stack = switched(quantized_defaults=other)
    assert [stack.defaults_over(kind) for kind in ("none", "nf4")] == [TRL.defaults, other]


def test_what_replaces_transformers_code_replaces_no_other() -> None:
    """Liger's loss and k-bit experts."""
    assert not switched(liger_loss=True, model_code="own").offers_liger_loss
    assert switched(fused_experts=True, quantizes_experts="never").passes_over == "parameters"
    assert switched(fused_experts=True, quantizes_experts="expanded").passes_over == "nothing"
    assert switched(fused_experts=False, quantizes_experts="never").passes_over == "nothing"
    assert switched(fused_experts=True, quantizes_experts="held").passes_over == "routers"


def test_two_stacks_of_one_id_lie_together_and_differ() -> None:
    """The hash is that of the id, equality of all fields."""
    other = switched(roundup_divisions=8)
    assert hash(other) == hash(TRL)
    assert other != TRL
