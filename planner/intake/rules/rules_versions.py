"""Rules about a stack whose packages are older than what it is asked to train."""

from __future__ import annotations

from planner.catalog.packages import parsed_version
from planner.intake.rules.rule import Case, not_modelled, warn
from planner.intake.supported import is_unread, lacks_model, needed_version


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
