"""``data/accuracy.json``: the one generated file of figures that tests compare with.

``make regenerate`` writes it, ``make accuracy`` says when it is stale, ``make figures`` prints it as tables.
Pages state its figures in round numbers, which a test holds to it, and the picture is drawn from it.
All shares are fractions, rounded up at the second digit.  Its parts:

- ``date``, ``formulas``, ``free_numbers``, ``rows``, ``groups``: when, with which formulas,
  what was fitted and to how much.
- ``coverage``: of 90 % intervals whose scale and quantiles are made from the other sources.
- ``scale``: how much each cause of scatter counts in the intervals that ship.
- ``goals``: what is aimed at (``aims.toml``) beside what is reached.  ``best`` is the best figure that a goal
  ever had; where ``reached`` is worse by more than a point, ``data/loosened.toml`` says why.
- ``anchors``: throughput of a held-out group before and after one measured row of its machine,
  the median over the choice of row.
- ``kinds``: the same for each kind of job (engine, trainer, method, GPU generation) that is left out whole.
- ``reliability``: held out, rows by P(fits): how many ran, beside what P promised,
  with one standard error of it.
- ``worth``: errors on left-out sources without and with each coefficient that the fit moves.
- ``documents``, ``methods``, ``gpus``: mean absolute errors ``unfitted`` (priors alone), ``in_sample``
  (fitted to all rows) and ``held_out`` (by a fit that never saw the source group).  Held-out figures of
  documents are limits, too.  ``worst_reading``: held out, with each choice of ``data/published/choices.toml``
  read the other way where that is worse.
- ``budget``: errors and wrong verdicts of each document with nothing fitted, which must not grow.  Its
  ``best`` has the lowest figures that there ever were, where they were lower.
- ``misses``: how many rows are far off with nothing fitted,
  and which of them ``data/published/misses.toml`` says nothing of.
- ``points``: what the picture draws of our own predictions,
  ``[series, quantity, record, measured, predicted]``.
- ``longest``: our answers to the longest sequences that Unsloth publishes.
- ``other_tools``: what other estimators say of the same rows, with their ``points``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from planner.catalog.location import data_dir
from planner.files.reading import read_text
from planner.files.structured import json_value

FILE_NAME = "accuracy.json"
# A fit's last digits follow the machine that it ran on: a share may differ by a digit of a percent,
# any other number by 2 %.
_SHARE_SLACK = 0.0101
_RATIO_SLACK = 0.02
_NOT_COMPARED = ("date", "other_tools")


def stored_accuracy() -> dict[str, Any]:
    """Content of ``data/accuracy.json``.

    Raises:
        InputFileError: missing or malformed.
    """
    path = data_dir() / FILE_NAME
    content: dict[str, Any] = json_value(path, read_text(path))
    return content


def stored_or_empty() -> dict[str, Any]:
    """The content; an empty one where the file is not there yet."""
    return stored_accuracy() if (data_dir() / FILE_NAME).is_file() else {}


def write_accuracy(parts: Mapping[str, Any]) -> None:
    """Replace some parts of the file; the others stay."""
    text = accuracy_text(stored_or_empty() | dict(parts))
    (data_dir() / FILE_NAME).write_text(text, encoding="utf-8")


def accuracy_text(content: Mapping[str, Any]) -> str:
    """Indented JSON with one line for each point, ending in a newline."""
    return _dumped(content, "") + "\n"


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Each value that is another one now, by its place; other estimators and the date are not compared."""
    before, after = (
        {key: value for key, value in each.items() if key not in _NOT_COMPARED} for each in (stored, now)
    )
    old, new = dict(_leaves(before, "")), dict(_leaves(after, ""))
    return [
        f"{place}: {old.get(place, 'nothing')} is stored, {new.get(place, 'nothing')} is reached now"
        for place in old | new
        if not _alike(old.get(place), new.get(place))
    ]


def _alike(old: object, new: object) -> bool:
    if isinstance(old, float) and isinstance(new, (int, float)):
        return math.isclose(old, new, rel_tol=_RATIO_SLACK, abs_tol=_SHARE_SLACK if abs(old) <= 1 else 0.0)
    if isinstance(old, int) and isinstance(new, int) and abs(old) > 1_000_000:
        return math.isclose(old, new, rel_tol=_RATIO_SLACK)
    return old == new


def _leaves(value: Any, place: str) -> Iterator[tuple[str, object]]:
    """Values that hold no others, by their place; a goal is found by its title and a point by its record,
    not by their number.
    """
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _leaves(each, f"{place}[{_label(each, number)}]")
    else:
        yield place, value


def _label(item: Any, number: int) -> str:
    if isinstance(item, Mapping) and "title" in item:
        return f"{item['title']}, {item['fit']}"
    if isinstance(item, list) and len(item) > 2:
        return " ".join(str(each) for each in item[:3])
    return str(number)


def _dumped(value: Any, indent: str) -> str:
    inner = f"{indent} "
    if isinstance(value, Mapping) and value:
        lines = [f"{inner}{json.dumps(key)}: {_dumped(each, inner)}" for key, each in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(each, (Mapping, list)) for each in value):
        return "[\n" + ",\n".join(f"{inner}{_dumped(each, inner)}" for each in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
