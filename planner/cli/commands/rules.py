"""``plan rules``: which combinations of settings are refused, and which only warn."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, get_args

from planner.cli.listing import list_schema, listing, table
from planner.cli.outcome import Outcome
from planner.intake.rules.all_rules import Level, rules_table
from planner.report.render.layout import Column

_TITLES: dict[Level, str] = {
    "refuse": "Refused, because it does not run: exit code 2, or a warning with --force",
    "not-modelled": "Not modelled, though it may run: exit code 6, or a warning with --force",
    "warn": "Warned about",
}
_COLUMNS = (Column(""), Column(""))


@dataclass(frozen=True, slots=True)
class ListedRule:
    """A rule as JSON has it."""

    id: str
    level: Level
    sentence: str


def list_rules(output_format: str) -> Outcome:
    """All rules, refusals first."""
    rules = [ListedRule(*row) for row in rules_table()]
    rules.sort(key=lambda rule: get_args(Level).index(rule.level))
    entries = [asdict(rule) for rule in rules]
    sections = [
        table(title, _COLUMNS, [(each.id, each.sentence) for each in rules if each.level == level])
        for level, title in _TITLES.items()
    ]
    return listing("rules", {"rules": entries}, sections, output_format)


def rules_json_schema() -> dict[str, Any]:
    """JSON Schema of the list."""
    return list_schema("rules", rules=ListedRule)
