"""``plan stacks``: the software stacks of the catalog."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from planner.catalog.stacks import load_stack, stack_ids
from planner.cli.listing import list_schema, listing, table
from planner.cli.outcome import Outcome
from planner.domain.stack import Stack
from planner.report.render.layout import Column

_TITLE = "Software stacks"
_WIDE = frozenset({"optimizer", "precision", "attention", "loss"})
_COLUMNS = tuple(
    Column(title, wide_only=title in _WIDE, whole=title == "id")
    for title in ("id", "title", "optimizer", "precision", "attention", "loss")
)


def list_stacks(output_format: str) -> Outcome:
    """All stacks with their main defaults; JSON has every switch with what settled it."""
    stacks = [load_stack(each) for each in stack_ids()]
    rows = [
        (
            each.id,
            each.title,
            each.defaults.optimizer,
            each.defaults.precision,
            each.defaults.attention,
            each.defaults.loss,
        )
        for each in stacks
    ]
    section = table(_TITLE, _COLUMNS, rows, "plan stacks --json has every switch.")
    return listing("stacks", {"stacks": [asdict(each) for each in stacks]}, [section], output_format)


def stacks_json_schema() -> dict[str, Any]:
    """JSON Schema of the list."""
    return list_schema("stacks", stacks=Stack)
