"""What is told of a program: which arguments its command gives, and values as a file would have them."""

from __future__ import annotations

import re
from typing import Any

from planner.configs.programs.values import OWN, Library, Unknown, is_known, leaves
from planner.configs.programs.walk import Walk
from planner.configs.shared.key_tables import names_in
from planner.errors import show

# Arguments that no answer depends on.
_BESIDE = frozenset(
    (*names_in("transformers.toml", "harmless"), *names_in("transformers.toml", "harmless_of_examples"),
     *names_in("trl.toml", "harmless"))
)  # fmt: skip
_MOST_LISTED = 10
_IS_SECRET = re.compile(r"(?:TOKEN|KEY|SECRET|PASSWORD)$")
_OFF: tuple[Any, ...] = (None, False, "", [], {})


def said_by(walk: Walk) -> list[tuple[str, str]]:
    """Which arguments the command gives, and which count with the defaults of the program."""
    said, left = dict[str, Any](), dict[str, Any]()
    for each in walk.parsed:
        for name in sorted(
            each.asked | (each.said - each.own) if not each.kind.endswith(OWN) else each.asked
        ):
            if name in each.given and name not in _BESIDE:
                (said if name in each.said else left)[name] = each.given[name]
    remarks = []
    if said:
        remarks.append(("command line", f"says {_listed(said)}"))
    if left := {name: value for name, value in left.items() if is_known(value) and value not in _OFF}:
        remarks.append((str(walk.source.path), f"defaults of its arguments count: {_listed(left)}"))
    remarks += [(each, "values of this config count") for each in dict.fromkeys(walk.files)]
    asked = walk.asked_variables.items()
    if told := {name: value for name, value in asked if value not in _OFF and not _IS_SECRET.search(name)}:
        text = f"defaults of variables of the environment count: {_listed(told)}"
        remarks.append((str(walk.source.path), text))
    return remarks


def _listed(values: dict[str, Any]) -> str:
    texts = [f"{name}={show(str(value))}" for name, value in values.items()]
    more = f" and {len(texts) - _MOST_LISTED} more" if len(texts) > _MOST_LISTED else ""
    return ", ".join(texts[:_MOST_LISTED]) + more


def written(value: Any) -> Any:
    """A value as a file would have it: what is not known is left to be filled in."""
    if is_known(value):
        return list(value) if isinstance(value, tuple) else value
    if isinstance(value, Library):
        value = Unknown(value.last)
    if isinstance(value, Unknown):
        return f"${{{value.text.translate(str.maketrans('{}$', '()_'))}}}"
    if isinstance(value, dict) and leaves(value) is not None:
        return {key: written(each) for key, each in value.items()}
    if isinstance(value, list) and all(isinstance(each, str | Unknown) for each in value):
        return [written(each) for each in value]
    return "${a value that the text does not say}"
