"""The table of attention kernels: complete, and in the words of Transformers."""

from __future__ import annotations

from planner.configs.shared import kernels
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS, ATTENTIONS
from planner.intake.rules.all_rules import rules_table


def test_every_kernel_has_facts_and_a_name_of_its_own() -> None:
    """A name in a config file is that of one kernel."""
    assert set(ATTENTIONS) == set(ATTENTION_FACTS)
    names = [name for facts in ATTENTION_FACTS.values() for name in facts.names]
    assert sorted(names) == sorted(kernels.ATTENTIONS)


def test_each_kernel_like_flash_attention_has_its_rules() -> None:
    """Old cards, fp32 and wide heads are refused in its own name."""
    ids = {each for each, *_ in rules_table()}
    for name, facts in ATTENTION_FACTS.items():
        for end in ("on-old-card", "in-fp32", "wide-heads"):
            assert (f"{name}-{end}" in ids) is facts.is_flash
