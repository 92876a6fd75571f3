"""``plan rules``: which combinations of settings are refused, and which only warn."""

from __future__ import annotations

from typing import get_args

from planner.cli.listing import listing, table
from planner.cli.outcome import Outcome
from planner.intake.rules.all_rules import Level, rules_table
from planner.report.render.layout import Column

_TITLE = "Combinations of settings"
_COLUMNS = (Column("rule"), Column("level"), Column("what it says"))
_NOTE = (
    "refuse: it does not run; exit code 2.  not-modelled: it may run, and no formula covers it; code 6.  "
    "--force turns both into warnings.  warn: people do run this; the report says so."
)


def list_rules(output_format: str) -> Outcome:
    """All rules, refusals first."""
    rows = sorted(rules_table(), key=lambda row: get_args(Level).index(row[1]))
    entries = [{"id": rule_id, "level": level, "sentence": sentence} for rule_id, level, sentence in rows]
    return listing("rules", {"rules": entries}, [table(_TITLE, _COLUMNS, rows, _NOTE)], output_format)
