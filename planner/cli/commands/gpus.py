"""``plan gpus``: the cards of the catalog."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import Any

from planner.catalog.gpus import gpu_ids, gpu_spellings, load_gpu, resolve_gpu_id, size_in
from planner.catalog.index import fold_name
from planner.cli.listing import list_schema, listing, table
from planner.cli.outcome import Outcome
from planner.domain.hardware import GpuSpec
from planner.errors import UsageError
from planner.report.render.layout import Column, Note, Section
from planner.units import GIB, GIGA, TERA

_COLUMNS = (
    Column("id", whole=True),
    Column("name", wide_only=True),
    Column("GiB", "right"),
    Column("bf16 T/s", "right"),
    Column("fp16 T/s", "right"),
    Column("GB/s", "right"),
    Column("link"),
    Column("W", "right"),
)
_NOTE = (
    "GiB: memory that CUDA reports, in 2^30 bytes; ~ where that is assumed, and in brackets what is sold "
    "where there is no CUDA.  T/s: dense 10^12 FLOP/s with fp32 accumulation.  GB/s: memory bandwidth.  "
    "? marks a number without a source, - one that is unknown or not in the hardware."
)
_ALL = "  plan gpus 4090 lists the cards with that in their names."
_OTHERS = "Not CUDA devices: known names, no verdict"
# Chips in the order in which they were sold; generations that are not here come last.
_GENERATIONS = ("pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell")


def list_gpus(name: str | None, output_format: str) -> Outcome:
    """All cards by generation, or those whose names hold ``name``; numbers that have no source are marked.

    Raises:
        UnknownNameError: no card's name holds ``name``; says the nearest.
        UsageError: no card is sold with so much memory.
    """
    ids = gpu_ids() if name is None else _named(name)
    cards = [load_gpu(each) for each in ids]
    groups = [(title, list(group)) for title, group in groupby(sorted(cards, key=_order), _title)]
    sections = [
        _names(title, group) if title == _OTHERS and name is None else _table(title, group)
        for title, group in groups
    ]
    entries = [{**asdict(card), "origins": dict(card.origins)} for card in cards]
    note = Note(_NOTE + (_ALL if name is None else ""), "dim")
    return listing("gpus", {"gpus": entries}, [*sections, Section("", (note,))], output_format)


def gpus_json_schema() -> dict[str, Any]:
    """JSON Schema of the list."""
    schema = list_schema("gpus", gpus=GpuSpec)
    origins = schema["$defs"]["GpuSpec"]["properties"]["origins"]
    # A dictionary there, for who reads it; pairs in the dataclass.
    names = {"type": "object", "additionalProperties": origins["items"]["prefixItems"][1]}
    schema["$defs"]["GpuSpec"]["properties"]["origins"] = names
    return schema


def _named(name: str) -> tuple[str, ...]:
    """Ids of the cards of a size, or with a spelling that holds ``name``;
    where there is none, the one card that it stands for.
    """
    if size := size_in(name):
        return _of_size(size)
    found = tuple(
        each for each in gpu_ids() if any(fold_name(name) in spelling for spelling in gpu_spellings(each))
    )
    return found or (resolve_gpu_id(name),)


def _of_size(size: str) -> tuple[str, ...]:
    """Ids of the cards that are sold with so much memory.  Names would not do: 48 GB hold 8 GB."""
    cards = (load_gpu(each) for each in gpu_ids())
    sold = {card.id: round((card.marketing_memory_bytes or 0) / GIB) for card in cards}
    found = tuple(each for each, n_gib in sold.items() if f"{n_gib}GB" == size.replace("i", ""))
    if not found:
        raise UsageError(f"no card of {size} is listed; plan gpus lists all")
    return found


def _title(card: GpuSpec) -> str:
    return f"NVIDIA {card.generation.title()}" if card.is_cuda else _OTHERS


def _order(card: GpuSpec) -> tuple[bool, int, str, bool, float, str]:
    """CUDA devices first, by generation, laptops below the others, small cards first."""
    place = _GENERATIONS.index(card.generation) if card.generation in _GENERATIONS else len(_GENERATIONS)
    size = card.visible_memory_bytes or card.marketing_memory_bytes or 0
    return not card.is_cuda, place, "" if card.is_cuda else card.vendor, "laptop" in card.id, size, card.id


def _names(title: str, cards: list[GpuSpec]) -> Section:
    vendors = groupby(cards, lambda card: card.vendor)
    return Section(
        title, tuple(Note(f"{vendor}: {', '.join(card.id for card in group)}") for vendor, group in vendors)
    )


def _table(title: str, cards: list[GpuSpec]) -> Section:
    return table(title, _COLUMNS, [_row(card) for card in cards])


def _row(card: GpuSpec) -> tuple[str, ...]:
    return (
        card.id,
        card.name,
        _visible(card),
        _number(card, "bf16_flop_per_s", TERA, 1),
        _number(card, "fp16_flop_per_s", TERA, 1),
        _number(card, "memory_bandwidth_bytes_per_s", GIGA, 0),
        card.interconnect,
        _number(card, "tdp_w", 1, 0),
    )


def _visible(card: GpuSpec) -> str:
    """Memory in GiB: what CUDA shows, or in brackets what is sold where CUDA shows none."""
    if card.visible_memory_bytes is None:
        return "-" if card.marketing_memory_bytes is None else f"({card.marketing_memory_bytes / GIB:.0f})"
    mark = "~" if card.origin_of("visible_memory_bytes") == "assumed" else ""
    return f"{mark}{card.visible_memory_bytes / GIB:.2f}"


def _number(card: GpuSpec, field: str, unit: int, digits: int) -> str:
    value = getattr(card, field)
    if value is None:
        return "-"
    mark = "?" if card.origin_of(field) == "unsourced" else ""
    return f"{value / unit:.{digits}f}{mark}"
