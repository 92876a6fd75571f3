"""The one table of combinations that are refused or warned about;
the code reads it and documentation prints it.
"""

from __future__ import annotations

from planner.errors import RefusedCombinationError, UnreadCombinationError
from planner.intake.rules.rule import Case, Level, Rule
from planner.intake.rules.rules_adapters import ADAPTER_RULES
from planner.intake.rules.rules_fp8 import FLOAT8_RULES
from planner.intake.rules.rules_fsdp import FSDP_RULES
from planner.intake.rules.rules_mixers import MIXER_RULES
from planner.intake.rules.rules_mixtures import MIXTURE_RULES
from planner.intake.rules.rules_optimizer import OPTIMIZER_RULES
from planner.intake.rules.rules_qat import QAT_RULES
from planner.intake.rules.rules_recipe import RECIPE_RULES
from planner.intake.rules.rules_stored import STORED_RULES
from planner.intake.rules.rules_system import SYSTEM_RULES
from planner.intake.rules.rules_tasks import TASK_RULES
from planner.intake.rules.rules_trained import TRAINED_LAYER_RULES
from planner.intake.rules.rules_versions import LIGER_RULES, VERSION_RULES
from planner.intake.rules.rules_vision import VISION_RULES
from planner.intake.rules.rules_zero import ZERO_RULES

__all__ = ["FORCE_HINT", "RULES", "Case", "Level", "Rule", "check", "rules_table"]

FORCE_HINT = " (--force goes on anyway)"
"""How a refusal ends; a command without that flag leaves it out."""
RULES: tuple[Rule, ...] = (
    *RECIPE_RULES,
    *OPTIMIZER_RULES,
    *TRAINED_LAYER_RULES,
    *ADAPTER_RULES,
    *MIXTURE_RULES,
    *MIXER_RULES,
    *STORED_RULES,
    *FLOAT8_RULES,
    *QAT_RULES,
    *TASK_RULES,
    *VISION_RULES,
    *VERSION_RULES,
    *SYSTEM_RULES,
    *FSDP_RULES,
    *ZERO_RULES,
    *LIGER_RULES,
)


def check(case: Case, *, force: bool = False) -> tuple[str, ...]:
    """Warnings about a resolved scenario, in the order of the table;
    with ``force`` refusals come as warnings, first.

    Raises:
        RefusedCombinationError: something is refused and ``force`` is not set; names every rule that says so.
        UnreadCombinationError: the same, where all of it may run and is only not modelled.
    """
    broken = [rule for rule in RULES if rule.applies(case)]
    refused = list(refusals(case).values())
    if refused and not force:
        runs_nowhere = any(rule.level == "refuse" for rule in broken)
        error = RefusedCombinationError if runs_nowhere else UnreadCombinationError
        raise error(f"{'; also: '.join(refused)}{FORCE_HINT}")
    warned = [f"{rule.message(case)} [{rule.id}]" for rule in broken if rule.level == "warn"]
    return (*(f"forced: {message}" for message in refused), *warned)


def refusals(case: Case) -> dict[str, str]:
    """What ``plan`` refuses about a resolved scenario: id of each rule and its sentence."""
    return {
        rule.id: f"{rule.message(case)} [{rule.id}]"
        for rule in RULES
        if rule.level != "warn" and rule.applies(case)
    }


def rules_table() -> tuple[tuple[str, Level, str], ...]:
    """Id, level and sentence of every rule."""
    return tuple((rule.id, rule.level, rule.sentence) for rule in RULES)
