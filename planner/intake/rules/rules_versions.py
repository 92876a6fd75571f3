"""Rules about packages that lack what a job asks of them: by their version, or Liger for this model."""

from __future__ import annotations

from planner.catalog.architecture_tables import needed_version
from planner.catalog.packages import parsed_version
from planner.errors import REFUSED_BY_TOOL
from planner.intake.rules.rule import Case, not_modelled, refuse, warn
from planner.intake.supported import is_unread, lacks_model, stops_at_liger_loss


def _is_older(case: Case) -> bool:
    version = _transformers(case)
    if not version or case.stack.model_code == "megatron-core" or lacks_model(case.stack, case.model):
        return False
    return parsed_version("transformers", version) < needed_version(case.model)


def _transformers(case: Case) -> str:
    return dict(case.stack.versions).get("transformers", "")


VERSION_RULES = (
    not_modelled(
        "model-unread-in-stack",
        "Of this architecture the modules of Transformers 5 were read, not those of this stack: use a "
        "--stack with version 5, such as hf-trainer",
        lambda case: is_unread(case.stack, case.model) and not lacks_model(case.stack, case.model),
        lambda case: f"{case.model.architecture}, in a stack of {case.stack.id}",
    ),
    warn(
        "model-newer-than-versions",
        "The stack's Transformers is older than this architecture, which runs there at most by code of a "
        "checkpoint: it is counted as newer ones have it; say --stack or --versions",
        _is_older,
        lambda case: (
            f"{case.model.architecture} came with {'.'.join(map(str, needed_version(case.model)))}, and "
            f"{case.stack.id} has {_transformers(case)}"
        ),
    ),
)


LIGER_RULES = (
    warn(
        "liger-not-in-stack",
        "This stack has no switch for the Liger loss",
        lambda case: (
            case.recipe.loss == "liger" and not (case.stack.offers_liger_loss or case.stack.cut_cross_entropy)
        ),
        lambda case: case.stack.id,
    ),
    warn(
        "liger-lacks-model",
        "Liger's fused loss is not made for this model here: all logits are",
        lambda case: "loss" in case.given and case.given["loss"].value != case.recipe.loss,
        lambda case: f"{case.model.architecture}, {case.stack.id}",
    ),
    refuse(
        "liger-loss-refused",
        f"Liger stops at its fused loss for Granite: leave it out, or say --loss hf [{REFUSED_BY_TOOL}]",
        lambda case: case.recipe.loss == "liger" and stops_at_liger_loss(case.model, case.stack),
        lambda case: case.model.id,
    ),
)
