"""PyYAML's safe loader with bounds; a module of its own,
so that PyYAML is imported only where YAML is read.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from planner.files.malformed import MAX_DEPTH, MAX_DIGITS, TOO_DEEP, MalformedError

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class BoundedLoader(yaml.SafeLoader):
    """Safe YAML without aliases of lists and tables, which can blow up; depth and numbers are bounded.

    Of a key given twice the last wins, as in ``yaml.safe_load``;
    ``twice`` has such keys with the line of the last.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.twice: dict[str, int] = {}
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """One node of the document, unless it is too deep, or an alias of more than one value."""
        is_alias, line = self.check_event(yaml.AliasEvent), self.line + 1
        if self._depth >= MAX_DEPTH:
            raise MalformedError(TOO_DEEP, line)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and not isinstance(node, yaml.ScalarNode):
            raise MalformedError(
                "aliases (*name) of lists and tables are not read: write the value out", line
            )
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """The value of a node, unless there is no such number or date."""
        line = node.start_mark.line + 1
        if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
            raise MalformedError(f"not valid YAML: a number of more than {MAX_DIGITS} digits", line)
        try:
            return super().construct_object(node, deep)
        except MalformedError:
            raise
        except (ValueError, ArithmeticError):
            raise MalformedError("not valid YAML: a date or a number that does not exist", line) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The table of a node whose keys are no lists and no tables."""
        seen: set[str] = set()
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                problem = "a key is a list or a table, as where a placeholder {{ name }} is not filled in"
                raise MalformedError(problem, line)
            if key.value in seen:
                self.twice[key.value] = line
            seen.add(key.value)
        return super().construct_mapping(node, deep)
