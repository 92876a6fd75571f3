"""Published rows that are predicted badly, and the mechanism of each as far as it is known.

``data/published/misses.toml`` is written by hand: mechanisms with their evidence and rows.  The part
``misses`` of ``data/accuracy.json`` says how many rows are far off by the code as it is, and names those that
no mechanism lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from planner.calibration.score.rows import QUANTITIES, Comparison, RowScore
from planner.errors import InputFileError
from planner.files.structured import read_toml
from tests.accuracy.aims import stored_aims
from tests.accuracy.published import published_dir

LISTED_ABOVE = stored_aims().misses.listed_above
STALE_SHARE = stored_aims().misses.stale_share
_TIMES = stored_aims().misses.times_the_aim
# Rows of other sources count where these are fully described (grade A).
OTHERS_LISTED_ABOVE = {
    each: _TIMES * stored_aims().held_out.others(each) for each in ("memory", "throughput")
}
UNEXPLAINED = "unexplained"

_FILE_NAME = "misses.toml"
Evidence = Literal["tested", "suspected", "none"]
"""``tested``: an experiment that could have refuted the mechanism confirmed it, and the text names it.
``suspected``: it would explain the rows, and nothing was tried.  ``none``: the rows are unexplained.
"""

_KEYS = {"pattern", "rows", "mechanism", "evidence"}


@dataclass(frozen=True, slots=True)
class MissGroup:
    """Rows that are wrong in the same way.  ``pattern`` says which, ``mechanism`` why,
    ``evidence`` how sure that is.
    """

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
        table[quantity] = [
            _group(group, f"group {number} of '{quantity}'") for number, group in enumerate(groups, 1)
        ]
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
        raise InputFileError(
            path, f'{place}: evidence is "none" exactly where the mechanism begins with "{UNEXPLAINED}"'
        )
    return MissGroup(entry["pattern"], entry["mechanism"], tuple(entry["rows"]), entry["evidence"])


def listed_above(row: RowScore, quantity: str) -> float | None:
    """The relative error from which a row has to be listed; ``None`` where none has:
    a source that is not fully described.
    """
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


def unlisted(
    held_out: Iterable[RowScore], stored: MissTable, known: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """A sentence for each held-out row that is further off than twice what is aimed at,
    and that nothing says anything of.

    ``known``: the stored part ``misses``, which names rows without a mechanism.
    """
    found = []
    aims = stored_aims()
    for quantity in OTHERS_LISTED_ABOVE:
        listed = {row for group in stored.get(quantity, ()) for row in group.rows} | {
            *known.get(quantity, {}).get("unlisted", ())
        }
        for row in held_out:
            comparison: Comparison | None = getattr(row, quantity)
            if comparison is None or listed_above(row, quantity) is None or row.record.id in listed:
                continue
            if abs(comparison.error) > _TIMES * aims.held_out.of_source(
                quantity, aims.name_of(row.record.source)
            ):
                found.append(
                    f"{row.record.id}: {quantity} is more than twice its aim off and "
                    f"data/published/{_FILE_NAME} does not say why"
                )
    return found


def misses_part(rows: Sequence[RowScore], stored: MissTable) -> dict[str, dict[str, Any]]:
    """The part of the file by quantity: how many rows are compared and far off,
    and which of them no mechanism lists.

    ``recovered``: rows that are listed, but by now below :data:`STALE_SHARE` of the limit.
    """
    part: dict[str, dict[str, Any]] = {}
    for quantity in QUANTITIES:
        over = over_limit(rows, quantity)
        listed = [row for group in stored.get(quantity, ()) for row in group.rows]
        part[quantity] = {
            "compared": len(over),
            "far_off": sum(times > 1 for times in over.values()),
            "unlisted": [row for row, times in over.items() if times > 1 and row not in listed],
            "recovered": [row for row in listed if over.get(row, 0.0) <= STALE_SHARE],
        }
    return part
