"""A job of few words, and what the intake makes of it."""

from __future__ import annotations

from functools import partial

from planner.domain.run_record import RunRecord
from planner.domain.scenario import Assumption, Scenario
from tests.jobs import resolved

BASE = {"model": "7b", "method": "lora", "gpu": "4090", "seq": 1024}


RECORD = RunRecord(
    id="doc-1", source="doc", source_group="doc", model="llama-2-7b", gpu="rtx4090", method="lora",
    outcome="ok",
    gpus_per_node=2, micro_batch=4, seq_len=512, n_samples=1100, lora_targets=("q_proj",),
    precision="fp16-mixed",
)  # fmt: skip


scenario_of = partial(resolved, BASE)
"""The scenario of BASE with these flags."""


def assumption(scenario: Scenario, name: str) -> Assumption:
    """The one entry about a value."""
    (entry,) = [entry for entry in scenario.assumptions if entry.name == name]
    return entry


def warned(rule_id: str, **flags: object) -> str:
    """What a rule says about BASE with these flags, refusals as warnings; empty where it says nothing."""
    warnings = resolved(BASE | flags, force=True).warnings
    return next((each for each in warnings if each.endswith(f"[{rule_id}]")), "")
