"""All facts of a stack under one name each."""

from __future__ import annotations

from planner.domain.stack import Stack


def named_facts(stack: Stack) -> dict[str, object]:
    """Every default, those over quantised bases that differ, and every switch, as ``settled`` names it."""
    owners: dict[str, object] = {
        "": stack,
        "defaults": stack.defaults,
        "quantized": stack.quantized_defaults,
    }
    names = (name.rpartition(".") for name, _, _ in stack.settled)
    return {f"{table}.{name}" if table else name: getattr(owners[table], name) for table, _, name in names}
