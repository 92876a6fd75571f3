"""Records as they come out of files, with where each one stood and what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from planner.domain.run_record import RunRecord


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A line that is kept out of the records and reported, by the ``rule`` that says why; line 0:
    the whole path.
    """

    path: str
    line: int
    reason: str
    rule: Literal["unfinished", "unreadable", "newer_schema", "repeated_id", "no_file"] = "unfinished"

    @property
    def place(self) -> str:
        """``file:line``, or the path alone."""
        return f"{self.path}:{self.line}" if self.line else self.path


@dataclass(frozen=True, slots=True)
class RecordSet:
    """Records of several files, in the order read.

    ``places`` gives ``file:line`` of each record id; ``attachments`` what a JSONL line carried beside the
    columns (``raw``, ``environment``, ``quality``), by record id.
    """

    records: tuple[RunRecord, ...]
    files: tuple[str, ...]
    places: Mapping[str, str]
    attachments: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    quarantined: tuple[Quarantined, ...] = ()
