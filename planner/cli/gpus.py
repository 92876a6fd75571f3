"""``plan gpus``: the cards of the catalog."""

from __future__ import annotations

from dataclasses import asdict

from planner.catalog.gpus import gpu_ids, load_gpu
from planner.cli.listing import listing, table
from planner.cli.outcome import Outcome
from planner.domain.hardware import GpuSpec
from planner.report.layout import Column
from planner.units import GIB, GIGA, TERA

_COLUMNS = (
    Column("id"),
    Column("name"),
    Column("GiB", "right"),
    Column("bf16 T/s", "right"),
    Column("fp16 T/s", "right"),
    Column("GB/s", "right"),
    Column("link"),
    Column("W", "right"),
)
_NOTE = (
    "? marks a number without a source, - one that is unknown or not in the hardware.  "
    "GiB: what CUDA reports as total, in 2^30 bytes.  "
    "T/s: dense 10^12 FLOP/s with fp32 accumulation.  GB/s: memory bandwidth."
)


def list_gpus(output_format: str) -> Outcome:
    """All cards, with numbers that have no source marked."""
    cards = [load_gpu(each) for each in gpu_ids()]
    section = table("GPUs", _COLUMNS, [_row(card) for card in cards], _NOTE)
    entries = [{**asdict(card), "origins": dict(card.origins)} for card in cards]
    return listing("gpus", {"gpus": entries}, [section], output_format)


def _row(card: GpuSpec) -> tuple[str, ...]:
    return (
        card.id,
        card.name,
        _number(card, "visible_memory_bytes", GIB, 2),
        _number(card, "bf16_flop_per_s", TERA, 1),
        _number(card, "fp16_flop_per_s", TERA, 1),
        _number(card, "memory_bandwidth_bytes_per_s", GIGA, 0),
        card.interconnect,
        _number(card, "tdp_w", 1, 0),
    )


def _number(card: GpuSpec, field: str, unit: int, digits: int) -> str:
    value = getattr(card, field)
    if value is None:
        return "-"
    mark = "?" if card.origin_of(field) == "unsourced" else ""
    return f"{value / unit:.{digits}f}{mark}"
