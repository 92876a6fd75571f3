"""A job with a few settings changed: as if its own flags had been typed once more with others after them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from planner.domain.hardware import Hardware
from planner.domain.recipes.flat_recipe import (
    flat_recipe,
    values_without_column,
    with_flat,
)
from planner.domain.recipes.recipe import Number
from planner.domain.scenario import Assumption, Scenario
from planner.domain.stack import Stack
from planner.intake.given.fields import FIELD_OF_COLUMN, REQUEST_FIELDS
from planner.intake.given.request import Given, ScenarioRequest
from planner.intake.resolve import LookedUp, assembled
from planner.intake.rules.all_rules import RULES, Case
from planner.intake.rules.all_rules import refusals as refused_by_rules

# Values of flags: text, ``True`` for a switch, ``None`` for a flag of the job that is left out.
Flags = Mapping[str, str | bool | None]


def flags_text(flags: Flags) -> str:
    """As they are typed; of a flag to leave out ``without --modules-to-save``."""
    return " ".join(
        f"without --{name}"
        if value is None
        else f"--{name}"
        if value is True
        else f"--no-{name}"
        if value is False
        else f"--{name} {value}"
        for name, value in flags.items()
    )


def with_flags(
    scenario: Scenario, flags: Flags, hardware: Hardware | None = None, stack: Stack | None = None
) -> Scenario:
    """The scenario with other flags of the recipe or of evaluation, and on other hardware or another software
    stack if some is given.

    What nobody gave follows anew from the stack and from what was given, as in the intake, and so does what
    the stack and the task make of the model.  Names of ``flags`` are those of fields, with hyphens.

    Raises:
        UsageError: a value that cannot be used, or settings that exclude each other.
    """
    given = dict(request_of(scenario).values)
    for flag, value in flags.items():
        name = flag.replace("-", "_")
        if value is None:
            given.pop(name, None)
        else:
            given[name] = Given(REQUEST_FIELDS[name].parse(value), "cli")
    run = scenario.run
    if "eval_batch" in given:
        run = replace(run, eval_micro_batch=given["eval_batch"].value)
    found = LookedUp(
        scenario.whole_model or scenario.model,
        hardware or scenario.hardware,
        stack or scenario.stack,
        run,
        scenario.assumptions,
        lengths=scenario.recipe.batch.lengths,
        second=scenario.whole_second,
    )
    changed = assembled(ScenarioRequest(MappingProxyType(given)), found)
    return replace(changed, warnings=scenario.warnings)


def request_of(scenario: Scenario) -> ScenarioRequest:
    """What was given about the recipe of a scenario, by the origins that it carries;
    all of it where no origin is known.
    """
    values = {FIELD_OF_COLUMN[name]: value for name, value in flat_recipe(scenario.recipe).items()}
    values |= values_without_column(scenario.recipe)
    if scenario.recipe.task == "classify":
        values["num_labels"] = scenario.model.head.out_features
    entries = {each.name: each for each in scenario.assumptions}
    return ScenarioRequest(
        MappingProxyType(
            {
                name: Given(value, entries[name].origin if name in entries else "cli")
                for name, value in values.items()
                if value not in (None, ()) and not (name in entries and _is_open(entries[name]))
            }
        )
    )


def _is_open(entry: Assumption) -> bool:
    return entry.is_assumed or entry.is_from_catalog or entry.is_from_data


def with_sizes(
    scenario: Scenario, micro_batch: Number, seq_len: Number, tokens_per_sample: Number
) -> Scenario:
    """The scenario with another micro-batch and another length in tokens; arrays for a grid."""
    sizes = {"micro_batch": micro_batch, "seq_len": seq_len, "tokens_per_sample": tokens_per_sample}
    return replace(scenario, recipe=with_flat(scenario.recipe, sizes))


def refusals(scenario: Scenario) -> dict[str, str]:
    """What every rule that refuses the scenario says, by the rule's id."""
    return refused_by_rules(Case(scenario, request_of(scenario).values))


def warnings_about(scenario: Scenario) -> frozenset[str]:
    """Ids of the rules that warn about the scenario."""
    case = Case(scenario, request_of(scenario).values)
    return frozenset(rule.id for rule in RULES if rule.level == "warn" and rule.applies(case))
