"""``plan rules``: which combinations of settings are refused, and which only warn."""

from __future__ import annotations

from typing import get_args

from planner.cli.listing import listing, table
from planner.cli.outcome import Outcome
from planner.intake.rules.all_rules import Level, rules_table
from planner.report.render.layout import Column

_TITLES: dict[Level, str] = {
    "refuse": "Refused, because it does not run: exit code 2, or a warning with --force",
    "not-modelled": "Not modelled, though it may run: exit code 6, or a warning with --force",
    "warn": "Warned about",
}
_COLUMNS = (Column(""), Column(""))


def list_rules(output_format: str) -> Outcome:
    """All rules, refusals first."""
    rows = sorted(rules_table(), key=lambda row: get_args(Level).index(row[1]))
    entries = [{"id": rule_id, "level": level, "sentence": sentence} for rule_id, level, sentence in rows]
    sections = [
        table(title, _COLUMNS, [(each[0], each[2]) for each in rows if each[1] == level])
        for level, title in _TITLES.items()
    ]
    return listing("rules", {"rules": entries}, sections, output_format)
