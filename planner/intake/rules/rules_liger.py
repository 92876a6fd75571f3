"""Rules about Liger's fused head and loss."""

from __future__ import annotations

from planner.domain.stack import Stack
from planner.errors import REFUSED_BY_TOOL
from planner.intake.rules.rule import Case, refuse, warn
from planner.intake.supported import stops_at_liger_loss


def _is_passed_over(case: Case) -> bool:
    """Whether the loss was given and did not come to be."""
    return "loss" in case.given and case.given["loss"].value != case.recipe.loss


def _offers(stack: Stack) -> bool:
    """Whether the loss, or cut cross entropy in its place, is there."""
    return stack.offers_liger_loss or stack.cut_cross_entropy


LIGER_RULES = (
    warn(
        "liger-not-in-stack",
        "This stack has no switch for the Liger loss",
        lambda case: case.recipe.loss == "liger" and not _offers(case.stack),
        lambda case: case.stack.id,
    ),
    warn(
        "liger-lacks-model",
        "Liger's fused loss is not made for this model here: all logits are",
        _is_passed_over,
        lambda case: f"{case.model.architecture}, {case.stack.id}",
    ),
    refuse(
        "liger-loss-refused",
        f"Liger stops at its fused loss for Granite: leave it out, or say --loss hf [{REFUSED_BY_TOOL}]",
        lambda case: case.recipe.loss == "liger" and stops_at_liger_loss(case.model, case.stack),
        lambda case: case.model.id,
    ),
)
