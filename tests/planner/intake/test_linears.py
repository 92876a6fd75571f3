"""Names of a model's matrices."""

from __future__ import annotations

from planner.intake.linears import linear_names
from tests.planner.intake.jobs import scenario_of


def test_linear_names_of_a_model() -> None:
    """The names that lora_targets may use, in the order of the model."""
    names = linear_names(scenario_of().model)
    assert names == ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
