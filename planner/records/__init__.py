"""Files <-> nouns: run records, read strictly from CSV and JSONL, and added to JSONL;
a crash loses at most the line being written.
"""

from __future__ import annotations

from planner.records.parsing import read_records
from planner.records.record_schema import COLUMNS, RECORD_SCHEMA_ID, record_json_schema
from planner.records.record_set import Quarantined, RecordSet
from planner.records.storing import append_jsonl

__all__ = [
    "COLUMNS",
    "RECORD_SCHEMA_ID",
    "Quarantined",
    "RecordSet",
    "append_jsonl",
    "read_records",
    "record_json_schema",
]
