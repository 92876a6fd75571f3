"""GPU entries of ``data/gpus``: looked up by name and read strictly;
small cards of one family share a file.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from planner.catalog.index import CatalogIndex, entries_of, read_index
from planner.catalog.location import data_dir
from planner.domain.hardware import GpuSpec, MatmulShapes, NumberOrigin
from planner.errors import InputFileError, UnknownNameError, UsageError, show
from planner.files.checking import validate
from planner.units import GIB, GIGA, MIB, TERA

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(gt=0)]
CatalogOrigin = Literal["datasheet", "measured", "derived", "unsourced", "assumed"]

# Words that drivers and shops put around a card's name and that choose nothing.
_DECORATION = re.compile(r"\b(nvidia|geforce|tesla|quadro|amd|instinct|intel|huawei|gpu)\b")
# Shares and gigabytes of a MIG slice, as nvidia-smi writes them.
_SLICE = re.compile(r"\b\d+g\.\d+gb\b")
_MIB_PER_GIB = GIB // MIB

# Key in the file -> field of GpuSpec.  The nvidia-smi total is for listing only.
_SPEC_FIELDS = {
    "marketing_memory_gib": "marketing_memory_bytes",
    "visible_memory_mib": "visible_memory_bytes",
    "memory_bandwidth_gb_per_s": "memory_bandwidth_bytes_per_s",
    "bf16_tflop_per_s": "bf16_flop_per_s",
    "fp16_tflop_per_s": "fp16_flop_per_s",
    "fp32_tflop_per_s": "fp32_flop_per_s",
    "int8_top_per_s": "int8_op_per_s",
    "fp8_tflop_per_s": "fp8_flop_per_s",
    "interconnect_gb_per_s": "interconnect_bytes_per_s",
    "pcie_generation": "pcie_generation",
    "pcie_lanes": "pcie_lanes",
    "tdp_w": "tdp_w",
    "best_matmul_tflop_per_s": "best_matmul_flop_per_s",
    "best_fp8_matmul_tflop_per_s": "best_fp8_matmul_flop_per_s",
    "multiprocessors": "multiprocessors",
}
NUMBER_KEYS = (*_SPEC_FIELDS, "nvidia_smi_total_mib")


class GpuEntry(BaseModel):
    """One file of ``data/gpus`` as it stands.  A key that is absent is unknown (or, for a rate,
    not in the hardware).

    Rates are dense, with fp32 accumulation.  ``interconnect_gb_per_s`` is the sum of both directions over all
    links of a device.  Numbers are those of one visible device, also on boards that carry two.
    ``unified_memory``: GPU and CPU share one memory.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    vendor: Literal["nvidia", "amd", "intel", "huawei", "apple", "none"]
    generation: str = Field(min_length=1)
    compute_capability: str = Field(min_length=1)
    aliases: list[str]
    variant_of: list[str] = []
    marketing_memory_gib: Positive | None = None
    nvidia_smi_total_mib: PositiveInt | None = None
    visible_memory_mib: PositiveInt | None = None
    memory_bandwidth_gb_per_s: Positive | None = None
    bf16_tflop_per_s: Positive | None = None
    fp16_tflop_per_s: Positive | None = None
    fp32_tflop_per_s: Positive | None = None
    int8_top_per_s: Positive | None = None
    fp8_tflop_per_s: Positive | None = None
    interconnect: str = Field(min_length=1)
    interconnect_gb_per_s: Positive | None = None
    pcie_generation: PositiveInt | None = None
    pcie_lanes: PositiveInt | None = None
    tdp_w: Positive | None = None
    best_matmul_tflop_per_s: Positive | None = None
    best_fp8_matmul_tflop_per_s: Positive | None = None
    multiprocessors: PositiveInt | None = None
    best_matmul_shapes: MatmulShapes | None = None
    unified_memory: bool = False
    source: str = Field(min_length=1)
    origins: dict[str, CatalogOrigin]

    @model_validator(mode="after")
    def _each_number_has_an_origin(self) -> Self:
        present = {key for key in NUMBER_KEYS if getattr(self, key) is not None}
        if missing := sorted(present - set(self.origins)):
            raise ValueError(f"no origin for '{missing[0]}' in [origins]")
        if left_over := sorted(set(self.origins) - present):
            raise ValueError(f"[origins] names '{left_over[0]}', which has no value here")
        if (self.best_matmul_tflop_per_s is None) != (self.best_matmul_shapes is None):
            raise ValueError(
                "'best_matmul_tflop_per_s' and 'best_matmul_shapes' belong together: which "
                "products were tried"
            )
        return self

    @model_validator(mode="after")
    def _memory_sizes_are_ordered(self) -> Self:
        """CUDA sees less than nvidia-smi, which shows at most what is on the label."""
        marketing = self.marketing_memory_gib
        sizes = {
            "visible_memory_mib": self.visible_memory_mib,
            "nvidia_smi_total_mib": self.nvidia_smi_total_mib,
            "marketing_memory_gib": None if marketing is None else marketing * _MIB_PER_GIB,
        }
        known = [(key, size) for key, size in sizes.items() if size is not None]
        for (lower_key, lower), (upper_key, upper) in pairwise(known):
            if lower > upper:
                raise ValueError(f"'{lower_key}' is above '{upper_key}'")
        if self.visible_memory_mib is not None and self.vendor != "nvidia":
            raise ValueError("'visible_memory_mib' is what CUDA sees and belongs to NVIDIA cards only")
        return self


def gpu_ids() -> tuple[str, ...]:
    """Ids of all GPUs in the catalog, sorted."""
    return tuple(sorted(_index().ids))


def gpu_spellings(gpu_id: str) -> tuple[str, ...]:
    """All names of one card, folded: its id, its aliases and those that it shares with others."""
    index = _index()
    shared = [name for name, ids in index.variants.items() if gpu_id in ids]
    return (*(name for name, found in index.aliases.items() if found == gpu_id), *shared)


def resolve_gpu_id(name: str) -> str:
    """Id of the card that ``name`` (id or alias, any spelling) stands for.

    Raises:
        UnknownNameError: no such card; says the nearest.
        UsageError: a name that several cards share, several names, or a MIG slice.
    """
    if "mig" in name.lower() or _SLICE.search(name.lower()):
        raise UsageError(
            f"MIG slices such as '{show(name)}' are not in the catalog: name the parent card with --gpu "
            "and give the memory of the slice with --gpu-memory SIZE; time and CUDA context are then "
            "those of the whole card"
        )
    index = _index()
    bare = _DECORATION.sub(" ", name.lower())
    for spelling in (name, bare):
        if found := index.find(spelling):
            return found
        if variants := index.variants_of(spelling):
            raise UsageError(
                f"GPU '{show(name)}' names several cards that differ in memory or speed; choose one of: "
                f"{', '.join(variants)}"
            )
    if "," in name:
        raise UsageError(
            f"gpu is one kind of card, but '{show(name)}' has a comma; plan search compares several: "
            "plan search --gpu 4090,l40s"
        )
    if name.lower() in ("any", "all"):
        raise UsageError(f"gpu is one kind of card, not '{name}'; plan search --gpu any compares cards")
    size = size_in(name)
    listed = f"plan gpus {size} lists the cards of that size" if size else "plan gpus lists them"
    hint = f"{listed}; or give a card's memory alone: --gpu-memory {size or '8GB'}"
    raise UnknownNameError("GPU", show(name), () if size else index.aliases, hint=hint)


def size_in(name: str) -> str:
    """``24GB`` where that is all that a name says."""
    found = re.fullmatch(r"\s*([1-9][0-9]{0,3})\s*G(i?)B?\s*", name, re.IGNORECASE)
    return f"{found[1]}G{found[2]}B" if found else ""


def gpu_entry(name: str) -> GpuEntry:
    """The entry of one card as it stands in its file, for listing.

    Raises:
        UsageError: as :func:`resolve_gpu_id`.
        InputFileError: the file is missing, malformed or breaks the schema.
    """
    entry_id = resolve_gpu_id(name)
    path = data_dir() / "gpus" / f"{_index().files.get(entry_id, entry_id)}.toml"
    found = _entries(path, path.stat().st_mtime_ns if path.is_file() else 0).get(entry_id)
    if found is None:
        raise InputFileError(
            path, f"holds no card '{entry_id}'; python -m planner.catalog.index writes the index anew"
        )
    return validate(GpuEntry, found, path)


@lru_cache(maxsize=128)
def _entries(path: Path, changed_ns: int) -> dict[str, dict[str, Any]]:
    del changed_ns  # part of the cache key only
    return {entry["id"]: entry for entry in entries_of(path)}


def load_gpu(name: str) -> GpuSpec:
    """The card that ``name`` stands for, in base units.

    Raises:
        UsageError: as :func:`resolve_gpu_id`.
        InputFileError: as :func:`gpu_entry`.
    """
    return spec_of(gpu_entry(name))


def spec_of(entry: GpuEntry) -> GpuSpec:
    """``entry`` in base units (bytes, bytes per second, FLOP per second)."""
    return GpuSpec(
        id=entry.id,
        name=entry.name,
        vendor=entry.vendor,
        generation=entry.generation,
        compute_capability=entry.compute_capability,
        marketing_memory_bytes=_whole(_scaled(entry.marketing_memory_gib, GIB)),
        visible_memory_bytes=_whole(_scaled(entry.visible_memory_mib, MIB)),
        memory_bandwidth_bytes_per_s=_scaled(entry.memory_bandwidth_gb_per_s, GIGA),
        bf16_flop_per_s=_scaled(entry.bf16_tflop_per_s, TERA),
        fp16_flop_per_s=_scaled(entry.fp16_tflop_per_s, TERA),
        fp32_flop_per_s=_scaled(entry.fp32_tflop_per_s, TERA),
        int8_op_per_s=_scaled(entry.int8_top_per_s, TERA),
        fp8_flop_per_s=_scaled(entry.fp8_tflop_per_s, TERA),
        interconnect=entry.interconnect,
        interconnect_bytes_per_s=_scaled(entry.interconnect_gb_per_s, GIGA),
        pcie_generation=entry.pcie_generation,
        pcie_lanes=entry.pcie_lanes,
        tdp_w=_scaled(entry.tdp_w, 1),
        origins=_spec_origins(entry),
        source=entry.source,
        best_matmul_flop_per_s=_scaled(entry.best_matmul_tflop_per_s, TERA),
        best_fp8_matmul_flop_per_s=_scaled(entry.best_fp8_matmul_tflop_per_s, TERA),
        multiprocessors=entry.multiprocessors,
        best_matmul_shapes=entry.best_matmul_shapes,
        driver_keeps_bytes=_kept_by_driver(entry),
        unified_memory=entry.unified_memory,
    )


def _kept_by_driver(entry: GpuEntry) -> int | None:
    total, visible = entry.nvidia_smi_total_mib, entry.visible_memory_mib
    return None if total is None or visible is None else (total - visible) * MIB


def _index() -> CatalogIndex:
    return read_index(data_dir() / "gpus")


def _spec_origins(entry: GpuEntry) -> tuple[tuple[str, NumberOrigin], ...]:
    return tuple((field, entry.origins[key]) for key, field in _SPEC_FIELDS.items() if key in entry.origins)


def _scaled(value: float | None, unit: int) -> float | None:
    return None if value is None else float(value * unit)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
