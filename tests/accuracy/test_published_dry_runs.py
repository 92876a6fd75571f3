"""Dry runs of programs whose peaks on a card were published, against these peaks."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest

from planner.allocator.documents.summary import room_on
from planner.catalog.gpus import load_gpu
from planner.units import MIB

ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests/against_libraries/programs/published.csv"
# Readings that are no rows of data/published.  hf_perf_doc: nvidia-smi, less the 1,343 MiB that its page
# reads with nothing but a context (left_out.toml).  fsdp_qlora: a remark below its second table.
OTHERS = {
    "hf_perf_doc-003": ("hf_perf_doc", "reserved", 6775 - 1343),
    "hf_perf_doc-005": ("hf_perf_doc", "reserved", 7275 - 1343),
    "hf_perf_doc-007": ("hf_perf_doc", "reserved", 4847 - 1343),
    "hf_perf_doc-009": ("hf_perf_doc", "reserved", 5363 - 1343),
    "fsdp_qlora-206-allocated": ("fsdp_qlora", "allocated", 8.28 * 1024),
    "fsdp_qlora-207-allocated": ("fsdp_qlora", "allocated", 9.16 * 1024),
}
# Mean errors that the dry run is to stay within, and how many sources say so at least.
AIMS = {"allocated": 0.015, "reserved": 0.04}
N_SOURCES = {"allocated": 6, "reserved": 5}


def _room_bytes(card: str) -> int:
    """More than this no program can have reserved there."""
    visible_bytes = load_gpu(card.split(":", maxsplit=1)[0]).visible_memory_bytes
    assert visible_bytes is not None
    return room_on(visible_bytes).most_bytes


def _errors() -> dict[str, dict[str, list[float]]]:
    """By meter and source, without signs."""
    measured: dict[str, tuple[str, str, float]] = dict(OTHERS)
    for path in (ROOT / "data/published").glob("*.csv"):
        for row in csv.DictReader(path.open(encoding="utf-8")):
            if row["peak_memory_mib"]:
                measured[row["id"]] = (row["source"], row["memory_kind"], float(row["peak_memory_mib"]))
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader(STORED.open(encoding="utf-8")):
        for each in row["rows"].split(";"):
            source, kind, peak_mib = measured[each]
            error = abs(min(int(row[f"{kind}_bytes"]), _room_bytes(row["card"])) / (peak_mib * MIB) - 1)
            found[kind][source].append(error)
    return found


@pytest.mark.parametrize("kind", AIMS)
def test_published_peaks_are_met(kind: str) -> None:
    """In the mean of each source."""
    errors = _errors()[kind]
    assert len(errors) >= N_SOURCES[kind]
    assert max(mean(each) for each in errors.values()) <= AIMS[kind]
