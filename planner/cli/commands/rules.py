"""``plan rules``: which combinations of settings are refused, and which only warn."""

from __future__ import annotations

from planner.cli.listing import listing, table
from planner.cli.outcome import Outcome
from planner.intake.rules.all_rules import rules_table
from planner.report.render.layout import Column

_TITLE = "Combinations of settings"
_COLUMNS = (Column("rule"), Column("level"), Column("what it says"))
_NOTE = "refuse: exit code 2, or a warning with --force.  warn: people do run this; the report says so."


def list_rules(output_format: str) -> Outcome:
    """All rules, refusals first."""
    rows = sorted(rules_table(), key=lambda row: row[1] != "refuse")
    entries = [{"id": rule_id, "level": level, "sentence": sentence} for rule_id, level, sentence in rows]
    return listing("rules", {"rules": entries}, [table(_TITLE, _COLUMNS, rows, _NOTE)], output_format)
