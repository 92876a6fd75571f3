"""Published rows that are predicted badly, each with a mechanism and the evidence for it, or "unexplained".

``python -m tests.accuracy.misses`` prints the content of ``data/published/misses.toml`` as it should be now, and with
``--write`` puts it there: groups and mechanisms stay, rows that are no longer wrong leave, new ones come in as "unexplained".
Do not redirect the output onto the file: the shell would empty it before its mechanisms are read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from planner.calibration.score.rows import QUANTITIES, Comparison, RowScore
from planner.errors import InputFileError
from planner.files.structured import read_toml
from tests.accuracy.aims import stored_aims
from tests.accuracy.published import published_dir, published_validation

LISTED_ABOVE = stored_aims().misses.listed_above
STALE_SHARE = stored_aims().misses.stale_share
_TIMES = stored_aims().misses.times_the_aim
# Rows of other sources count where these are fully described (grade A).
OTHERS_LISTED_ABOVE = {each: _TIMES * stored_aims().held_out.others(each) for each in ("memory", "throughput")}
_OTHERS = " or ".join(f"{limit:.0%} ({quantity})" for quantity, limit in OTHERS_LISTED_ABOVE.items())
UNEXPLAINED = "unexplained"

_FILE_NAME = "misses.toml"
Evidence = Literal["tested", "suspected", "none"]
"""``tested``: an experiment that could have refuted the mechanism confirmed it, and the text names it.  ``suspected``: it would
explain the rows, and nothing was tried.  ``none``: the rows are unexplained."""

_KEYS = {"pattern", "rows", "mechanism", "evidence"}
_HEADER = f"""\
# Every row of the numbered documents whose uncalibrated prediction is more than {LISTED_ABOVE:.0%} off, and every other grade-A
# row that is more than {_OTHERS} off, twice what is aimed at for
# held-out rows, with a mechanism, or "{UNEXPLAINED}".
# evidence: "tested" (an experiment that could have refuted the mechanism confirmed it; the text names it), "suspected" (it would
# explain the rows, nothing was tried) or "none" (unexplained, with what would settle it where known).  A test checks that no
# such row is missing and that every row here is still more than {STALE_SHARE:.0%} of that off.
# Rows of one pattern stand together; [[memory]] is GPU memory.
# `python -m tests.accuracy.misses --write` brings this file up to date; mechanisms and evidence are kept.
"""


@dataclass(frozen=True, slots=True)
class MissGroup:
    """Rows that are wrong in the same way.  ``pattern`` says which, ``mechanism`` why, ``evidence`` how sure that is."""

    pattern: str
    mechanism: str
    rows: tuple[str, ...]
    evidence: Evidence


MissTable = Mapping[str, Sequence[MissGroup]]


def stored_misses() -> MissTable:
    """Groups of ``data/published/misses.toml`` by quantity; empty without the file.

    Raises:
        InputFileError: malformed, an unknown key, or a row that is listed twice for one quantity.
    """
    path = published_dir() / _FILE_NAME
    if not path.exists():
        return {}
    content = read_toml(path)
    if unknown := content.keys() - set(QUANTITIES):
        raise InputFileError(path, f"unknown table '{min(unknown)}'; known: {', '.join(QUANTITIES)}")
    table: dict[str, list[MissGroup]] = {}
    for quantity, groups in content.items():
        table[quantity] = [_group(group, f"group {number} of '{quantity}'") for number, group in enumerate(groups, 1)]
        ids = [row for group in table[quantity] for row in group.rows]
        if twice := {row for row in ids if ids.count(row) > 1}:
            raise InputFileError(path, f"'{min(twice)}' is listed twice under '{quantity}'")
    return table


def _group(entry: Mapping[str, Any], place: str) -> MissGroup:
    path = published_dir() / _FILE_NAME
    if set(entry) != _KEYS:
        raise InputFileError(path, f"{place} needs exactly {', '.join(sorted(_KEYS))}")
    if entry["evidence"] not in get_args(Evidence):
        raise InputFileError(path, f"'evidence' in {place} must be one of {', '.join(get_args(Evidence))}")
    if (entry["evidence"] == "none") != entry["mechanism"].startswith(UNEXPLAINED):
        raise InputFileError(path, f'{place}: evidence is "none" exactly where the mechanism begins with "{UNEXPLAINED}"')
    return MissGroup(entry["pattern"], entry["mechanism"], tuple(entry["rows"]), entry["evidence"])


def listed_above(row: RowScore, quantity: str) -> float | None:
    """The relative error from which a row has to be listed; ``None`` where none has: a source that is not fully described."""
    if stored_aims().name_of(row.record.source) is not None:
        return LISTED_ABOVE
    return OTHERS_LISTED_ABOVE.get(quantity) if row.record.grade == "A" else None


def over_limit(rows: Iterable[RowScore], quantity: str) -> dict[str, float]:
    """Size of the error of each row over the error from which it has to be listed, by row id."""
    found: dict[str, float] = {}
    for row in rows:
        comparison: Comparison | None = getattr(row, quantity)
        limit = listed_above(row, quantity)
        if comparison is not None and limit is not None:
            found[row.record.id] = abs(comparison.error) / limit
    return found


def unlisted(held_out: Iterable[RowScore], stored: MissTable) -> list[str]:
    """A sentence for each held-out row that is further off than twice what is aimed at, and that the list says nothing of."""
    found = []
    aims = stored_aims()
    for quantity in OTHERS_LISTED_ABOVE:
        listed = {row for group in stored.get(quantity, ()) for row in group.rows}
        for row in held_out:
            comparison: Comparison | None = getattr(row, quantity)
            if comparison is None or listed_above(row, quantity) is None or row.record.id in listed:
                continue
            if abs(comparison.error) > _TIMES * aims.held_out.of_source(quantity, aims.name_of(row.record.source)):
                found.append(
                    f"{row.record.id}: {quantity} is more than twice its aim off and data/published/{_FILE_NAME} does not say why"
                )
    return found


def updated_misses(rows: tuple[RowScore, ...], stored: MissTable) -> dict[str, list[MissGroup]]:
    """``stored`` without the rows that are right by now, and with the new misses as unexplained groups by pattern."""
    table: dict[str, list[MissGroup]] = {}
    for quantity in QUANTITIES:
        over = over_limit(rows, quantity)
        groups = [_still_wrong(group, over) for group in stored.get(quantity, ())]
        listed = {row for group in groups for row in group.rows}
        new = [row for row in rows if over.get(row.record.id, 0.0) > 1 and row.record.id not in listed]
        table[quantity] = _merged([group for group in groups if group.rows], new, quantity)
    return table


def misses_toml() -> str:
    """Content of the file for the code as it is."""
    table = updated_misses(published_validation().rows, stored_misses())
    parts = [_HEADER]
    for quantity, groups in table.items():
        for group in groups:
            rows = "".join(f"  {json.dumps(row)},\n" for row in group.rows)
            # A JSON string is a TOML basic string for text without control characters.
            texts = [
                f"{key} = {json.dumps(getattr(group, key), ensure_ascii=False)}\n" for key in ("pattern", "mechanism", "evidence")
            ]
            parts.append(f"[[{quantity}]]\n{''.join(texts)}rows = [\n{rows}]\n")
    return "\n".join(parts)


def _still_wrong(group: MissGroup, over: Mapping[str, float]) -> MissGroup:
    rows = tuple(row for row in group.rows if over.get(row, 0.0) > STALE_SHARE)
    return replace(group, rows=rows)


def _merged(groups: list[MissGroup], new: Iterable[RowScore], quantity: str) -> list[MissGroup]:
    """New misses join the unexplained group of their pattern, or make one at the end."""
    by_pattern: dict[str, list[str]] = {}
    for row in new:
        by_pattern.setdefault(pattern_of(row, quantity), []).append(row.record.id)
    merged = []
    for group in groups:
        joining = by_pattern.pop(group.pattern, []) if group.mechanism == UNEXPLAINED else []
        merged.append(replace(group, rows=(*group.rows, *joining)))
    return merged + [MissGroup(pattern, UNEXPLAINED, tuple(rows), "none") for pattern, rows in by_pattern.items()]


def pattern_of(row: RowScore, quantity: str) -> str:
    """What rows of one kind share: document, method, quantisation, sharding, offload, and the direction of the error."""
    record = row.record
    comparison: Comparison = getattr(row, quantity)
    above = comparison.error > 0
    if quantity == "throughput":
        direction = "too fast" if above == comparison.is_rate else "too slow"
    else:
        direction = "too high" if above else "too low"
    saved = f"with {'+'.join(record.modules_to_save)}" if record.modules_to_save else None
    settings = (record.method, record.quantization, record.sharding, record.offload, saved)
    return f"{record.source}: {' '.join(part for part in settings if part is not None and part != 'none')}, predicted {direction}"


def main(arguments: Sequence[str]) -> None:
    """Print the file, or write it in place."""
    text = misses_toml()
    if "--write" in arguments:
        (published_dir() / _FILE_NAME).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
