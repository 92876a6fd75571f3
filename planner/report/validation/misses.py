"""``plan validate --rows``: rows of the published documents that are far off, with the mechanism and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass

from planner.calibration.misses import STALE_SHARE, MissGroup, over_limit, stored_misses
from planner.calibration.score.validate import Validation
from planner.report.render.layout import Block, Note, Section

_TITLES = {"memory": "GPU memory", "throughput": "throughput", "host_memory": "host RAM"}
_WORDS = {
    "tested": "tested by an experiment",
    "suspected": "suspected, not tested",
    "none": "no mechanism",
}


@dataclass(frozen=True, slots=True)
class Miss:
    """A group of ``data/published/misses.toml`` with those of its rows that this validation finds far off."""

    quantity: str
    group: MissGroup
    rows: tuple[str, ...]


def misses_of(validation: Validation) -> tuple[Miss, ...]:
    """Groups that have rows in ``validation`` which it too finds off; a calibration may have mended some.

    Raises:
        InputFileError: the file of misses is malformed.
    """
    found: list[Miss] = []
    for quantity, groups in stored_misses().items():
        over = over_limit(validation.rows, quantity)
        for group in groups:
            rows = tuple(row for row in group.rows if over.get(row, 0.0) > STALE_SHARE)
            if rows:
                found.append(Miss(quantity, group, rows))
    return tuple(found)


def misses_section(validation: Validation) -> Section:
    """Each group: its rows, what is thought to be the reason, and how sure that is."""
    blocks: list[Block] = []
    for miss in misses_of(validation):
        blocks += [Note("")] if blocks else []
        blocks.append(Note(f"{_TITLES[miss.quantity]}, {miss.group.pattern}: {_WORDS[miss.group.evidence]}", "strong"))
        blocks += [Note(miss.group.mechanism), Note(", ".join(miss.rows), "dim")]
    return Section("Rows far off: why, and how sure that is", tuple(blocks))
